"""Endpoints that hang, or send callers in a circle: each wait ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.utils import ContainerMetadataFetcher

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, DataError, StoreUnavailableError
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

ADDRESS = S3Address("bucket", "key")
_AGENT_TRIES = ContainerMetadataFetcher.RETRY_ATTEMPTS  # by botocore, before it gives up
# Servers that never answer are not given longer by a busy machine.
SILENCE = Patience(seconds=0.1, silence=0.5)


class Server:
    """A server on loopback that answers each connection as it is told to."""

    def __init__(self, answer: Callable[[socket.socket, str], None]) -> None:
        self._answer, self._over = answer, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := connection.recv(1 << 16):
                    self._answer(connection, request.decode("latin-1").split()[1])
            except OSError:
                return


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    servers: list[Server] = []

    def start(answer: Callable[[Server, socket.socket, str], None]) -> Server:
        servers.append(Server(lambda connection, path: answer(servers[-1], connection, path)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def hang(server: Server, connection: socket.socket, path: str) -> None:
    server._over.wait()


CALLS = {
    "probe": lambda store: store.probe(ADDRESS),
    "write": lambda store: store.write(ADDRESS, b"data"),
    "read": lambda store: store.read(ADDRESS),
    "list": lambda store: list(store.list(ADDRESS)),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_does_not_answer_ends_the_wait(
    serve: Callable[..., Server], call: str, tmp_path: Path
) -> None:
    store = Store(serve(hang).endpoint, secret=SecretVolume(tmp_path), patience=SILENCE)
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


@pytest.mark.parametrize("length", ["Content-Length: {}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("size", [10, 11])
def test_an_object_is_bounded_however_its_length_is_said(
    serve: Callable[..., Server], length: str, size: int, tmp_path: Path
) -> None:
    def answer(server: Server, connection: socket.socket, path: str) -> None:
        data = b"x" * size
        body = data if "{}" in length else b"%x\r\n%s\r\n0\r\n\r\n" % (size, data)
        connection.sendall(f"HTTP/1.1 200 OK\r\n{length.format(size)}\r\n\r\n".encode() + body)

    store = Store(serve(answer).endpoint, secret=SecretVolume(tmp_path))
    if size == 10:
        assert store.read(ADDRESS, 10) == b"x" * 10
    else:
        with pytest.raises(DataError, match="too large"):
            store.read(ADDRESS, 10)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "307 T"])
@pytest.mark.parametrize("call", CALLS)
def test_an_endpoint_that_redirects_is_said_to(
    serve: Callable[..., Server], status: str, call: str, tmp_path: Path
) -> None:
    def redirect(server: Server, connection: socket.socket, path: str) -> None:
        words = (
            f"HTTP/1.1 {status}\r\nLocation: {server.endpoint}{path}\r\nContent-Length: 0\r\n\r\n"
        )
        connection.sendall(words.encode())

    server = serve(redirect)
    store = Store(server.endpoint, secret=SecretVolume(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        CALLS[call](store)
    assert f"{server.endpoint}/bucket" in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://h h", "http://[::1", "http://h:x", "http://h:99999"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="storage_endpoint"):
        Store(endpoint)


def test_an_agent_that_does_not_give_credentials_at_first(serve, monkeypatch) -> None:
    """On a new node, the agent of EKS Pod Identity answers some seconds later than pods start."""
    asked: list[str] = []
    given = {"AccessKeyId": "of-the-agent", "SecretAccessKey": "s", "Token": "t"}
    given["Expiration"] = "2999-01-01T00:00:00Z"

    def answer(server: Server, connection: socket.socket, path: str) -> None:
        asked.append(path)
        away = len(asked) <= _AGENT_TRIES
        status, body = ("500 Away", "{}") if away else ("200 OK", json.dumps(given))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())

    agent = serve(answer)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.endpoint}/keys")
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    store = Store(agent.endpoint, patience=Patience(seconds=30))
    assert store.session._keys().access_key == "of-the-agent"
    assert asked == ["/keys"] * (_AGENT_TRIES + 1)
