"""A store with published models, and servers that end with their test."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from tests.serve.process import ServerProcess
from tests.serve.published import Publisher

Start = Callable[..., ServerProcess]


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    version: str | None


@pytest.fixture(scope="session")
def publisher(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """Models that are published once: pets with numbers, people with columns of every type."""
    base = S3Address("test", "serve")
    publisher = Publisher(s3.store(), base, tmp_path_factory.mktemp("serve"))
    publisher.pets()
    publisher.people()
    return publisher


@pytest.fixture
def start(s3: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts servers, and ends what is left of them."""
    started: list[ServerProcess] = []

    def begin(model: str, *more: str, output: str = "s3://test/serve", **given: Any) -> Any:
        started.append(ServerProcess(model, output, s3.secret, tmp_path, *more, **given))
        return started[-1]

    yield begin
    for server in started:
        server.kill()


def post(url: str, body: Any, **headers: str) -> Reply:
    """Send a request; `body` is JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | named)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            version = reply.headers.get("x-model-version")
            return Reply(reply.status, json.loads(reply.read()), version)
    except urllib.error.HTTPError as error:
        return Reply(error.code, json.loads(error.read()), None)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return reply.read().decode()
