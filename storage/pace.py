"""How slowly a reply may come: silence ends it, and so does a byte now and then.

A socket's timeout restarts with every byte, so a server that keeps sending single bytes could hold
a caller without end. Here every 64 KiB have the time of one silence. Only waiting is counted: a
reader that works between two reads loses nothing.

The reply to a POST is the exception: while a store joins the parts of an object it sends a blank
every few seconds, for minutes. Each byte has the time of a silence there, and all of it an end.
"""

from __future__ import annotations

import io
import math
import socket
import time
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

PIECE = 64 << 10  # bytes
_JOINING_SECONDS = 900.0  # the longest that a store may take for the reply to a POST


class ReplyDeadline:
    """The waiting for one reply.

    Args:
        seconds: The longest for a piece.
        piece: Its size in bytes.
        whole: The longest for the whole reply, in seconds.
    """

    def __init__(self, seconds: float, piece: int = PIECE, whole: float = math.inf) -> None:
        self._seconds, self._piece, self._whole = seconds, piece, whole
        self._left, self._received = min(seconds, whole), 0

    def receive(self, connection: socket.socket, buffer: Any, receive: Any = None) -> int:
        """Receive into a buffer and return how many bytes came; 0 at the end.

        Args:
            connection: Where from; its timeout is changed.
            buffer: Where to.
            receive: What is called with the buffer; by default the connection's own method.

        Raises:
            TimeoutError: A piece took too long.
        """
        began = time.monotonic()
        connection.settimeout(max(self._left, 0.001))
        try:
            count = (receive or connection.recv_into)(buffer)
        except TimeoutError:
            raise TimeoutError(
                f"{self._received} bytes of the reply came in {self._seconds:.0f} s"
            ) from None
        waited = time.monotonic() - began
        self._left -= waited
        self._whole -= waited
        self._received += count
        if self._received >= self._piece:
            self._left, self._received = min(self._seconds, self._whole), 0
        return count


def install(client: Any) -> None:
    """Let every reply that a boto3 client reads have this pace."""
    schemes = client._endpoint.http_session._pool_classes_by_scheme
    schemes.update(http=_HttpPool, https=_HttpsPool)


class _Source(io.RawIOBase):
    """What a reply is read from, in place of the socket's own file."""

    def __init__(self, raw: io.RawIOBase, connection: socket.socket, pace: ReplyDeadline) -> None:
        self._raw, self._connection, self._pace = raw, connection, pace
        self._seconds = connection.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._pace.receive(self._connection, buffer, self._raw.readinto)

    def close(self) -> None:
        with suppress(OSError):  # it may be closed
            self._connection.settimeout(self._seconds)  # the next request has all of it
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        if seconds := sock.gettimeout():  # the read timeout of the client
            joins = kwargs.get("method") == "POST"
            pace = ReplyDeadline(seconds, 1, _JOINING_SECONDS) if joins else ReplyDeadline(seconds)
            source = _Source(self.fp.detach(), sock, pace)
            self.fp = io.BufferedReader(source)


class _Http(AWSHTTPConnection):
    response_class = _Response


class _Https(AWSHTTPSConnection):
    response_class = _Response


class _HttpPool(AWSHTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _Https
