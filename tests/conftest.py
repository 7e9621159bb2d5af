"""What tests share: one real S3 server for the whole session, and a fresh prefix for each test."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.step import ROOMS
from pipelines.local.s3_server import Server
from storage.address import S3Address
from storage.credentials import MOUNT_VARIABLE
from storage.retry import Patience
from storage.store import Store

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
def base(store: Store) -> S3Address:
    """A prefix no other test uses."""
    return S3Address("test", f"t{next(_prefixes)}")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a step that ran in this process did to the loggers of our rooms."""
    loggers = [logging.getLogger(room) for room in ROOMS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]
