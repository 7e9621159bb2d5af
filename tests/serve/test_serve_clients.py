"""Clients that are elsewhere, that stall, and that send very long strings."""

import socket
from datetime import UTC, datetime

import numpy as np
import pytest

from kfp_tfjob.serving.monitor import monitor
from tests.local import mixed_dataset
from tests.serve.conftest import Start
from tests.serve.published import COLUMNS, PEOPLE, PETS, Publisher, as_sent

pytestmark = pytest.mark.slow
OTHER = "127.0.0.2"  # of this machine, but not the address of its loopback interface
PET = dict.fromkeys(COLUMNS, 0.5)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_uploads_that_stall_do_not_keep_others_out(start: Start) -> None:
    fewer = "from kfp_tfjob.serving import limits; limits.STALLED, limits.LONGEST = 3.0, 8.0"
    server = start(PETS, "--max-request-mb", "1", before=fewer).ready()
    head = (
        f"POST /v1/models/{PETS}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
        "Content-Type: application/json\r\n\r\n"
    ).encode()
    stalled = []
    for _ in range(12):
        stalled.append(socket.create_connection(("127.0.0.1", server.port), 60))
        stalled[-1].sendall(head + b" " * 950_000)
    statuses: list[int] = []

    def answered() -> bool:
        statuses.append(server.predict([PET]).status)
        return statuses[-1] == 200

    server.until(answered)
    assert set(statuses) <= {503, 200}, statuses
    found = []
    for client in stalled:
        with client:
            found.append(int(client.recv(65536).split(b" ", 2)[1]))
            while found[-1] == 408 and client.recv(65536):
                pass  # up to the end: the server closes the connection
    assert sorted(set(found)) in ([408], [408, 503]) and found.count(408) >= 7
    assert 'code="408"' in server.metrics
    assert server.is_ready() and server.stop() == 0


def test_long_strings_take_little_memory_and_their_sample_is_read(
    publisher: Publisher, start: Start
) -> None:
    before = datetime.now(UTC)
    server = start(PEOPLE, "--sample-rows", "100").ready()
    (row,) = as_sent(mixed_dataset.people(np.random.default_rng(1), 1))

    def ask(count: int) -> int:
        for number in range(count):
            row["note"] = f"{number}" + "x" * 30_000_000
            assert server.predict([row]).status == 200
        return server.memory

    few = ask(5)
    assert ask(25) < few + 300_000_000  # each request has 30 MB, of which nothing may stay
    assert server.stop() == 0
    days = (datetime.now(UTC) - before).total_seconds() / 86400
    found = monitor(publisher.store, publisher.layout, PEOPLE, datetime.now(UTC), days)
    assert (found.rows, found.bad_rows, found.unreadable) == (30, 0, ())


def test_headers_have_a_limit(start: Start) -> None:
    server = start(PETS).ready()
    # Only a pod, or --host, opens it to other machines.
    assert _answers("127.0.0.1", server.port) and not _answers(OTHER, server.port)
    before = server.memory
    head = b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\n"
    trailers = head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    address = ("127.0.0.1", server.port)
    for begun in (head + b"X: ", b"GET /", trailers + b"X: "):
        with pytest.raises(OSError), socket.create_connection(address, timeout=60) as client:
            client.sendall(begun)
            for _ in range(60):
                client.sendall(b"a" * 1_000_000)
    assert server.memory - before < 40e6
    assert server.stop() == 0
