"""Limits how slowly a reply may arrive.

A socket's timeout restarts with every byte, so a server that keeps sending single bytes could hold
a caller forever. Here every 64 KiB must arrive within one timeout. Only waiting counts: a reader
that works between two reads loses no time.

The reply to a POST is the exception. While a store joins the parts of an object, it sends a blank
every few seconds, for minutes. There the timeout applies to each byte, and the whole reply has a
limit too.
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
_JOINING_SECONDS = 900.0  # the limit for the whole reply to a POST


class ReplyDeadline:
    """The time limits of one reply.

    Args:
        seconds: The longest wait for a piece.
        piece: Its size in bytes.
        whole: The longest wait for the whole reply, in seconds.
    """

    def __init__(self, seconds: float, piece: int = PIECE, whole: float = math.inf) -> None:
        self._seconds, self._piece, self._whole = seconds, piece, whole
        self._left, self._received = min(seconds, whole), 0

    def receive(self, connection: socket.socket, buffer: Any, receive: Any = None) -> int:
        """Receive into a buffer and return the number of bytes; 0 at the end.

        Args:
            connection: The socket; its timeout is changed.
            buffer: Takes the bytes.
            receive: Called with the buffer; by default the connection's own method.

        Raises:
            TimeoutError: A piece took too long.
        """
        began = time.monotonic()
        connection.settimeout(max(self._left, 0.001))
        try:
            count = (receive or connection.recv_into)(buffer)
        except TimeoutError:
            raise TimeoutError(
                f"only {self._received} bytes of the reply arrived in {self._seconds:.0f} s"
            ) from None
        waited = time.monotonic() - began
        self._left -= waited
        self._whole -= waited
        self._received += count
        if self._received >= self._piece:
            self._left, self._received = min(self._seconds, self._whole), 0
        return count


def install(client: Any) -> None:
    """Apply these limits to every reply that a boto3 client reads."""
    schemes = client._endpoint.http_session._pool_classes_by_scheme
    schemes.update(http=_HttpPool, https=_HttpsPool)


class _Source(io.RawIOBase):
    """The file that a reply is read from, instead of the socket's own."""

    def __init__(
        self, raw: io.RawIOBase, connection: socket.socket, deadline: ReplyDeadline
    ) -> None:
        self._raw, self._connection, self._deadline = raw, connection, deadline
        self._seconds = connection.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._deadline.receive(self._connection, buffer, self._raw.readinto)

    def close(self) -> None:
        with suppress(OSError):  # it may be closed
            self._connection.settimeout(self._seconds)  # the next request has the full timeout
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        if seconds := sock.gettimeout():  # the read timeout of the client
            joins = kwargs.get("method") == "POST"
            deadline = (
                ReplyDeadline(seconds, 1, _JOINING_SECONDS) if joins else ReplyDeadline(seconds)
            )
            source = _Source(self.fp.detach(), sock, deadline)
            self.fp = io.BufferedReader(source)


class _Http(AWSHTTPConnection):
    response_class = _Response


class _Https(AWSHTTPSConnection):
    response_class = _Response


class _HttpPool(AWSHTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _Https
