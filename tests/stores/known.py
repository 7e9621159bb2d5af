"""The stores that `make test-stores` tests, and what is known of each.

A difference is a test that fails for a reason that users can read in docs/support.md. It must keep
failing: a store that has changed gets another line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from kfp_tfjob.checks.finding import Status
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from tests.faults import seaweedfs, versitygw
from tests.faults.seaweedfs import SeaweedFS
from tests.faults.versitygw import Versitygw
from tests.stores import endpoint
from tests.stores.endpoint import Endpoint

VARIABLE = "TEST_STORE"  # a name of KNOWN, or the URL of a bucket
BUCKET = "test"  # of the servers that tests start
TESTS = [
    f"tests/local/test_{name}.py"
    for name in ("store", "store_checks", "store_room", "publish_race", "uploader_faults", "prune")
]


class StoreServer(Protocol):
    """A store that answers.

    Attributes:
        endpoint: Its URL.
        secret: The folder with its address and keys, as a mounted Secret has them.
    """

    endpoint: str
    secret: Path

    def store(self) -> Store: ...


@dataclass(frozen=True)
class KnownStore:
    """A store.

    Attributes:
        version: The version that is tested.
        loses_races: Whether two simultaneous creates of one object may succeed.
        differences: By test, how the store differs.
        chances: By test, why it fails in some sessions.
    """

    version: str = ""
    loses_races: bool = False
    differences: Mapping[str, str] = field(default_factory=dict)
    chances: Mapping[str, str] = field(default_factory=dict)

    @property
    def statuses(self) -> set[Status]:
        """The statuses that its check may have."""
        return {Status.OK, Status.WARNING} if self.loses_races else {Status.OK}


_NAMES = "test_store.py::test_any_name_comes_back"
_SEAWEEDFS = {
    f"{_NAMES}[a//b]": "`a//b` is listed as `a/b`",
    f"{_NAMES}[~-._!*'()$,;:@[]{{}}|^`\\\\\\r\\n]": "a backslash is listed as `/`",
}
_VERSITYGW = {f"{_NAMES}[a//b]": "`a//b` is listed as `a/b`"}
_LOST_RACES = {
    f"test_publish_race.py::test_{name}": "two publishers create one version"
    for name in ("fifty_publishers_at_once[s3]", "who_loses_the_race_is_judged_once_more")
}
KNOWN = {
    "swift": KnownStore("2.38.3"),
    "versitygw": KnownStore("1.2.0", loses_races=True, differences=_VERSITYGW, chances=_LOST_RACES),
    "seaweedfs-shipped": KnownStore(seaweedfs.SHIPPED, differences=_SEAWEEDFS),
    "seaweedfs-newest": KnownStore(seaweedfs.NEWEST, differences=_SEAWEEDFS),
}


def current() -> KnownStore:
    """Return what is known of the store of this session; nothing of a user's."""
    name = os.environ.get(VARIABLE, "swift")
    return KNOWN.get(name, KnownStore(loses_races=True))


def is_seaweedfs() -> bool:
    """Return whether the store of this session is a SeaweedFS that tests start."""
    return os.environ.get(VARIABLE, "").startswith("seaweedfs")


def place() -> S3Address:
    """Return the bucket in which tests write, or a new folder of a user's bucket."""
    name = os.environ.get(VARIABLE, "swift")
    return S3Address(BUCKET) if name in KNOWN else endpoint.place(name)


@contextmanager
def running(folder: Path) -> Iterator[StoreServer]:
    """Start the store of this session.

    Args:
        folder: An empty folder for its data.
    """
    name = os.environ.get(VARIABLE, "swift")
    if name not in KNOWN:
        server = Endpoint(name, folder)
        yield server
        server.empty()
    elif name == "swift":
        with Server.start(folder) as server:
            server.store().make_bucket(BUCKET)
            yield server
    elif name == "versitygw":
        program = versitygw.executable()
        if not program:
            pytest.skip("there is no Go to build versitygw with")
        server = Versitygw(program, folder / name)
        server.start()
        server.store().make_bucket(BUCKET)
        yield server
        server.stop()
    else:
        server = SeaweedFS(KNOWN[name].version, folder / name)
        server.start(BUCKET)
        yield server
        server.stop()


def select(items: list[pytest.Item]) -> None:
    """Leave out tests of another store than that of this session, and mark those that differ."""
    if VARIABLE not in os.environ:
        return
    others = {"versitygw"}
    if os.environ[VARIABLE].startswith("https:"):
        # A forward proxy cannot look into HTTPS, and the reverse proxy signs with the right key.
        others |= {"proxied", "wrong secret key"}
    items[:] = [item for item in items if not others & _parameters(item)]
    for item in items:
        for strict, reasons in ((True, current().differences), (False, current().chances)):
            for test, reason in reasons.items():
                if item.nodeid.endswith(test):
                    item.add_marker(pytest.mark.xfail(reason=reason, strict=strict))


def _parameters(item: pytest.Item) -> set[str]:
    """Return the servers and ways that a test's parameters name."""
    call = getattr(item, "callspec", None)
    params = call.params if call else {}
    return {*params.get("world", ()), str(params.get("bench", "")), str(params.get("name", ""))}
