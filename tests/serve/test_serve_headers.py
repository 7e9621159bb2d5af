"""Clients that never finish their headers: neither memory nor connections grow with them."""

import socket
import time

import pytest

from tests.serve.conftest import Start, get
from tests.serve.process import ServerProcess
from tests.serve.published import PETS, Publisher

pytestmark = pytest.mark.slow
HEAD = b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\n"
MEGABYTE = b"a" * 1_000_000


def test_headers_have_a_limit_and_a_deadline(publisher: Publisher, start: Start) -> None:
    shorter = "from kfp_tfjob.serving import connection; connection.SECONDS = 5.0"
    server = start(PETS, before=shorter).ready()
    before = server.memory
    trailers = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    for begun in (HEAD + b"X: ", b"GET /", trailers + b"X: "):
        with pytest.raises(OSError), connected(server) as client:
            client.sendall(begun)
            for _ in range(60):
                client.sendall(MEGABYTE)
    assert server.memory - before < 40e6

    with connected(server) as silent, connected(server) as slow, connected(server) as kept:
        slow.sendall(HEAD)
        kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(100).startswith(b"HTTP/1.1 200")
        kept.sendall(b"\r\n")  # would keep the connection open without a request
        began = time.monotonic()
        for client in (silent, slow, kept):
            while client.recv(1000):
                pass
        assert time.monotonic() - began < 60
    # A request in small pieces, with headers of a usual size, is answered.
    with connected(server) as client:
        request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nX: " + MEGABYTE[:30_000]
        for at in range(0, len(request), 1000):
            client.sendall(request[at : at + 1000])
        client.sendall(b"\r\nConnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert "live" in get(f"{server.url}/v2/health/live") and "Traceback" not in server.log


def connected(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)
