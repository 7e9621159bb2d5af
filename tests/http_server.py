"""Small HTTP servers in the place of those that a test cannot have."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads and answers whole bodies, and logs nothing."""

    server: Any  # has what the test keeps there
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer(self, body: object, status: int = 200) -> None:
        """Send bytes, or anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(
    handler: type[Handler],
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    **kept: object,
) -> Iterator[Any]:
    """Serve until the block ends; `kept` and the `url` are attributes of the server."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.daemon_threads = True
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        url = f"{'https' if tls else 'http'}://{host}:{server.server_port}"
        vars(server).update(kept, url=url)
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
