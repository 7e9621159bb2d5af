"""Endpoints that hang, or send callers in a circle: each wait ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.utils import ContainerMetadataFetcher

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, DataError, StoreUnavailableError
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from tests.faults.proxy import Exchange, Fault, FaultProxy, refuse
from tests.faults.world import EVER

ADDRESS = S3Address("bucket", "key")
_AGENT_TRIES = ContainerMetadataFetcher.RETRY_ATTEMPTS  # by botocore, before it gives up
# Servers that never answer are not given longer by a busy machine.
SILENCE = Patience(seconds=0.1, silence=0.5)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with FaultProxy() as found:
        yield found


CALLS = {
    "probe": lambda store: store.probe(ADDRESS),
    "write": lambda store: store.write(ADDRESS, b"data"),
    "read": lambda store: store.read(ADDRESS),
    "list": lambda store: list(store.list(ADDRESS)),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_does_not_answer_ends_the_wait(
    server: FaultProxy, call: str, tmp_path: Path
) -> None:
    server.faults = [Fault(lambda _: threading.Event().wait(), ".*", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path), patience=SILENCE)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        CALLS[call](store)
    assert time.monotonic() - began < 60  # twice the silence, and whatever the machine is busy with
    assert "bucket" in str(caught.value)


def test_half_of_the_keys_are_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="missing: AWS_SECRET_ACCESS_KEY"):
        Store("http://127.0.0.1:9", secret=SecretVolume(tmp_path))


@pytest.mark.parametrize("size", [10, 11])
def test_an_object_without_a_length_is_bounded(
    server: FaultProxy, size: int, tmp_path: Path
) -> None:
    def chunked(exchange: Exchange) -> bool:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        exchange.wfile.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size))
        return True

    server.faults = [Fault(chunked, "GET", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path))
    if size == 10:
        assert store.read(ADDRESS, 10) == b"x" * 10
    else:
        with pytest.raises(DataError, match="too large"):
            store.read(ADDRESS, 10)


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_redirects_is_said_to(
    server: FaultProxy, status: int, call: str, tmp_path: Path
) -> None:
    def redirect(exchange: Exchange) -> bool:
        for _ in exchange.body():
            continue
        exchange.reply(status, [("Location", f"{server.endpoint}{exchange.target}")], b"")
        return True

    server.faults = [Fault(redirect, ".*", times=EVER)]
    store = Store(server.endpoint, secret=SecretVolume(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        CALLS[call](store)
    assert f"{server.endpoint}/bucket" in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://h h", "http://[::1", "http://h:x", "http://h:99999"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="storage_endpoint"):
        Store(endpoint)


def test_an_agent_that_does_not_give_credentials_at_first(server: FaultProxy, monkeypatch) -> None:
    """On a new node, the agent of EKS Pod Identity answers some seconds later than pods start."""
    given = {"AccessKeyId": "of-the-agent", "SecretAccessKey": "s", "Token": "t"}
    given["Expiration"] = "2999-01-01T00:00:00Z"

    def give(exchange: Exchange) -> bool:
        exchange.reply(200, [], json.dumps(given).encode())
        return True

    server.faults = [Fault(refuse(500, "Away"), "GET", times=_AGENT_TRIES)]
    server.faults.append(Fault(give, "GET", after=_AGENT_TRIES))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.endpoint}/keys")
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    store = Store(server.endpoint, patience=Patience(seconds=30))
    assert store.session._keys().access_key == "of-the-agent"
    assert [seen.target for seen in server.seen] == ["/keys"] * (_AGENT_TRIES + 1)
