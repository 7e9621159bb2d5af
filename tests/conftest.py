"""What tests share: one real S3 server for the whole session, and a fresh prefix for each test."""

import gc
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings

from kfp_tfjob.components.step import LOGGER
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.pack import NAME, pack
from tests.faults.proxy import FaultProxy
from tests.faults.versitygw import Versitygw, executable
from tests.stores import known

# The packages in kfp_tfjob/; four of them are links to folders of the root.
PACKAGES = "checks cluster common components features jobs judging options pages pipelines".split()
PACKAGES += "registry serving storage supervisor trainer uploader user_code".split()
_prefixes = itertools.count()
# The same examples in every run: a change is judged by what it did, not by the luck of a draw.
# `pytest --hypothesis-profile search` draws new ones.
settings.register_profile("same", derandomize=True, deadline=None)  # a busy machine is slow
settings.register_profile("search", derandomize=False, deadline=None)
settings.load_profile("same")


def pytest_collection() -> None:
    """Import the tests without looking for garbage among millions of objects that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running S3 server; `make test-stores` names another one than Swift."""
    with known.running(tmp_path_factory.mktemp("s3")) as server:
        yield cast(Server, server)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    """A running S3 server of another kind, with users of its own and the bucket `test`."""
    program = executable()
    if not program:
        pytest.skip("there is no Go to build versitygw with")
    server = Versitygw(program, tmp_path_factory.mktemp("versitygw"))
    server.start()
    server.store().make_bucket("test")
    yield server
    server.stop()


@pytest.fixture
def store(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store on the server; processes that a test starts find it in their environment."""
    monkeypatch.setenv(MOUNT_VARIABLE, str(s3.secret))
    return Store(patience=Patience(20))


@pytest.fixture
def proxy(s3: Server, store: Store) -> Iterator[FaultProxy]:
    """A proxy in front of the server that shows every request and does what it is told to."""
    with FaultProxy(s3.endpoint, s3.secret) as proxy:
        yield proxy


@pytest.fixture
def base(store: Store) -> S3Address:
    """A prefix no other test uses."""
    return known.place() / f"t{next(_prefixes)}"


@pytest.fixture
def layout(base: S3Address) -> Layout:
    return Layout(base)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what a step or a command that ran in this process did to the project's loggers."""
    logger = logging.getLogger(LOGGER)
    handlers, propagate = logger.handlers, logger.propagate
    before = {each: each.level for each in (logger, *_loggers_below())}
    yield
    logger.handlers, logger.propagate = handlers, propagate
    for each in (logger, *_loggers_below()):
        each.setLevel(before.get(each, logging.NOTSET))


def _loggers_below() -> list[logging.Logger]:
    """Return the loggers of the modules so far; a command for people makes some of them quiet."""
    known = logging.root.manager.loggerDict.items()
    return [
        found
        for name, found in known
        if name.startswith(f"{LOGGER}.") and isinstance(found, logging.Logger)
    ]


@pytest.fixture(scope="session")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The supervisor as a replica runs it: one file."""
    path = tmp_path_factory.mktemp("supervisor") / NAME
    pack(path)
    return path


@pytest.fixture
def repository() -> Path:
    return Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known.select(items)
    items.sort(key=lambda item: item.path.name != "test_types.py")  # a minute; never the last one
