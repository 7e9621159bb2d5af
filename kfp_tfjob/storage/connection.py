"""A keep-alive HTTP/1.1 connection for requests with small replies.

http.client parses the headers of a reply like an e-mail. For a small PUT, that costs more than all
other work. This module only splits a reply into lines.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

CONNECT_SECONDS, READ_SECONDS = 5, 60
_IDLE_SECONDS = 20  # servers keep an unused connection longer
_TOGETHER = 64 << 10  # bytes; a body up to this size is sent together with the headers
_LONGEST_HEAD = _RECEIVED = 64 << 10


class ProtocolError(OSError):
    """The reply is not HTTP/1.1, or ended too early."""


@dataclass(frozen=True)
class HttpReply:
    """A reply: its status, its headers with lower-case names, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """A connection that one thread uses at a time.

    Args:
        host: Name of the host, with the port if it is not the default.
        context: For TLS; None for plain HTTP.
        seconds: The longest silence of the server.

    Attributes:
        reusable: Whether the next request may use this connection.
    """

    def __init__(
        self, host: str, context: ssl.SSLContext | None = None, seconds: float = READ_SECONDS
    ) -> None:
        url = urlsplit(f"//{host}")
        port = url.port or (443 if context else 80)
        self._socket = socket.create_connection((url.hostname, port), CONNECT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            self._socket = context.wrap_socket(self._socket, server_hostname=url.hostname)
        self._socket.settimeout(seconds)
        self._buffer = bytearray(_RECEIVED)
        self._received = b""  # but not used yet
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._used = time.monotonic()
        self.reusable = True

    def alive(self) -> bool:
        """Tell whether the server has kept the connection open."""
        return time.monotonic() - self._used < _IDLE_SECONDS and not self._poll.poll(0)

    def close(self) -> None:
        """Close it."""
        self.reusable = False
        self._socket.close()

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Iterator[bytes | memoryview],
    ) -> HttpReply:
        """Send a request and return its reply.

        Raises:
            OSError: The connection broke, or the reply is not HTTP.
        """
        lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        try:
            for chunk in body:
                if head and len(chunk) <= _TOGETHER:
                    self._socket.sendall(b"%b%b" % (head, chunk))
                else:
                    if head:
                        self._socket.sendall(head)
                    self._socket.sendall(chunk)
                head = b""
            if head:
                self._socket.sendall(head)
        except (BrokenPipeError, ConnectionResetError):
            self.reusable = False  # a server that refuses early sends a reply and hangs up
        status, found = 100, {}
        while 100 <= status < 200:
            status, found = self._head()
        data = self._body(status, found)
        if self._received:
            self.reusable = False  # surplus bytes must not be taken for the next reply
        self._used = time.monotonic()
        return HttpReply(status, found, data)

    def _until(self, mark: bytes) -> str:
        """Return the text before `mark`."""
        while (end := self._received.find(mark)) < 0:
            if len(self._received) > _LONGEST_HEAD or not self._more():
                raise ProtocolError("the connection was closed before the reply was complete")
        data, self._received = self._received[:end], self._received[end + len(mark) :]
        return data.decode("latin-1")

    def _more(self) -> bool:
        """Receive data; return False if the server has closed the connection."""
        count = self._socket.recv_into(self._buffer)
        self._received += self._buffer[:count]
        return bool(count)

    def _head(self) -> tuple[int, dict[str, str]]:
        first, *lines = self._until(b"\r\n\r\n").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise ProtocolError(f"not an HTTP/1.1 reply: {version[:80]!r}")
        found: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        if version == "HTTP/1.0" or found.get("connection", "").lower() == "close":
            self.reusable = False
        return int(rest[:3]), found

    def _body(self, status: int, headers: Mapping[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            data = b""
            while size := int(self._until(b"\r\n").partition(";")[0], 16):
                data += self._read(size)
                self._until(b"\r\n")
            while self._until(b"\r\n"):  # trailers
                continue
            return data
        if "content-length" in headers:
            return self._read(int(headers["content-length"]))
        self.reusable = False
        while self._more():
            continue
        return self._received

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            if not self._more():
                raise ProtocolError("the connection was closed in the middle of the reply")
        data, self._received = self._received[:size], self._received[size:]
        return data
