"""A store with published models, and servers that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from tests.serve.process import ServerProcess
from tests.serve.published import Publisher

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def publisher(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Models that are published once: pets with numbers, people with columns of every type."""
    base = S3Address("test", "serve")
    publisher = Publisher(s3.store(), base, tmp_path_factory.mktemp("serve"))
    publisher.pets()
    publisher.people()
    return publisher


@pytest.fixture
def start(publisher: Publisher, s3: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts servers of the published models, and ends what is left of them."""
    started: list[ServerProcess] = []

    def begin(model: str, *more: str, output: str = "s3://test/serve", **given: Any) -> Any:
        started.append(ServerProcess(model, output, s3.secret, tmp_path, *more, **given))
        return started[-1]

    yield begin
    for server in started:
        server.kill()
