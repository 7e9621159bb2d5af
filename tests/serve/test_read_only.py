"""A server whose keys may only list and read: it serves, follows, and names what it cannot keep."""

from pathlib import Path

import pytest

from tests.faults.versitygw import Versitygw
from tests.serve.process import ServerProcess
from tests.serve.published import COLUMNS, PETS, Publisher

pytestmark = pytest.mark.slow


def copy(publisher: Publisher, server: Versitygw) -> None:
    """Copy the published models to a server with users of its own."""
    root, store = publisher.layout.root, server.store()
    there = {item.address for item in store.list(root)}
    for item in publisher.store.list(root):
        if item.address not in there:
            store.write(item.address, publisher.store.read(item.address))


def test_keys_that_may_only_read_are_enough(
    publisher: Publisher, versitygw: Versitygw, tmp_path: Path
) -> None:
    copy(publisher, versitygw)
    reader, output = versitygw.reader(publisher.layout.root.bucket), str(publisher.layout.root)
    pet = dict.fromkeys(COLUMNS, 0.5)
    server = ServerProcess(PETS, output, reader, tmp_path, "--sample-rows", "5").ready()
    try:
        before = server.predict([pet])
        assert before.status == 200, before.body
        version = str(publisher.pets())
        copy(publisher, versitygw)
        server.until(lambda: server.predict([pet]).version == version)
        assert server.stop() == 0
    finally:
        server.kill()
    # What was collected is stored at the end, at the latest.
    place = publisher.layout.model(PETS).requests
    assert str(place) in server.log and "--sample-rows" in server.log
    assert "Traceback" not in server.log
    assert not list(versitygw.store().list(place))
