"""What tests share: one real S3 server for the whole session, and a fresh prefix for each test."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.local.s3_server import Server
from storage.address import S3Address
from storage.credentials import MOUNT_VARIABLE
from storage.retry import Patience
from storage.store import Store
from tests.faults.proxy import FaultProxy

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running S3 server with the bucket `test`."""
    with Server.start(tmp_path_factory.mktemp("s3")) as server:
        server.store().make_bucket("test")
        yield server


@pytest.fixture
def store(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on the server; processes that a test starts find it in their environment."""
    monkeypatch.setenv(MOUNT_VARIABLE, str(s3.secret))
    return Store(patience=Patience(20))


@pytest.fixture
def proxy(s3: Server, store: Store) -> Iterator[FaultProxy]:
    """A proxy in front of the server that shows every request and does what it is told to."""
    with FaultProxy(s3.endpoint, {p.name: p.read_text() for p in s3.secret.iterdir()}) as proxy:
        yield proxy


@pytest.fixture
def base(store: Store) -> S3Address:
    """A prefix no other test uses."""
    return S3Address("test", f"t{next(_prefixes)}")


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]
