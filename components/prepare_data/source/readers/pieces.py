"""Makes a stream of the pieces that a generator yields."""

from __future__ import annotations

import io
from collections.abc import Iterator


class Pieces(io.RawIOBase):
    """The bytes of an iterator as a stream.

    Args:
        pieces: Yields bytes.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes; 0 at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
