"""A proxy in front of an API server that fails a part of all calls, each in another way."""

import itertools
import random
import socket
import threading
from collections import Counter
from http.server import ThreadingHTTPServer
from typing import Self

import urllib3

from tests.http_server import Handler

_KINDS = ("500", "429", "410", "reset", "cut")
_DROPPED = {"host", "content-length", "transfer-encoding", "connection"}


class FaultyProxy(ThreadingHTTPServer):
    """Plain HTTP to this host, TLS to the API server.

    Attributes:
        away: Calls whose path has this in it get no answer; none where it is empty.
    """

    daemon_threads = True

    def __init__(self, server: str, authority: str, share: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server, self.share = server, share
        self.pool = urllib3.PoolManager(ca_certs=authority, maxsize=50, retries=False)
        self.calls, self.faults, self.away = 0, Counter(), ""
        self._random = random.Random(7)
        self._kinds = itertools.cycle(_KINDS)
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self) -> str:
        """Return how the next call fails, or nothing."""
        with self._lock:
            self.calls += 1
            if self._random.random() >= self.share:
                return ""
            kind = next(self._kinds)
            self.faults[kind] += 1
            return kind

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: connections that break are what this is for."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(Handler):
    server: FaultyProxy

    def do_GET(self) -> None:
        body = self.body()
        fault = self.server.fault()
        if self.server.away and self.server.away in self.path:
            fault = "reset"
        if fault == "reset":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault and fault != "cut":
            return self.answer({"kind": "Status", "message": "injected"}, int(fault))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _DROPPED}
        reply = self.server.pool.request(
            self.command,
            self.server.server + self.path,
            body=body,
            headers=headers,
            preload_content=False,
            timeout=urllib3.Timeout(5, 90),
        )
        if "watch=true" not in self.path and "follow=true" not in self.path:
            answer = self._answer_half if fault else self.answer
            return answer(reply.read(), reply.status)
        self.send_response(reply.status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in reply.stream(4096):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if fault:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.wfile.write(b"0\r\n\r\n")

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _answer_half(self, data: bytes, status: int) -> None:
        """Let half of an answer arrive: the call was done, and its answer is lost."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
