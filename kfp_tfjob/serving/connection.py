"""A deadline for the headers of a request, which uvicorn does not have.

h11 bounds their bytes, and `limits.py`, which runs when they are complete, the body.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BYTES = 65_536  # of request line and headers, or of trailers
SECONDS = 30.0  # from the connection, or the first byte of a later request, to complete headers


class Connection(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read bytes; each may complete the headers, or begin those of the next request."""
        super().data_received(data)
        waits = self.conn.their_state is h11.IDLE
        if waits and not self._deadline:
            self._deadline = self.loop.call_later(SECONDS, self.transport.close)
        elif self._deadline and not waits:
            self._deadline.cancel()
            self._deadline = None
