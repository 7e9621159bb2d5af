"""Reads an object as a file; a broken connection is reopened at the same byte.

The entity tag of the listing is a condition of each request, so an object that is replaced while it
is read is an error and never a mixture. Called by prepare_data's `files.py`.
"""

from __future__ import annotations

import io
from threading import Lock
from typing import Any

from botocore.exceptions import IncompleteReadError

from .address import S3Address
from .s3_errors import transient
from .store import Store

BUFFER = 1 << 20  # bytes per read from the connection, so that small reads cost no request each
_MOST_STARTS = 4  # objects whose first bytes, up to BUFFER of each, stay in memory


class Starts:
    """A cache of the first bytes of the most recently opened objects, up to BUFFER of each.

    Several readers open a file to detect its format; only the first one asks the store.
    """

    def __init__(self) -> None:
        self._starts: dict[tuple[S3Address, str], bytes] = {}
        self._lock = Lock()

    def get(self, address: S3Address, etag: str) -> bytes:
        """Return the first bytes of an object; empty if they are not cached."""
        return self._starts.get((address, etag), b"")

    def keep(self, address: S3Address, etag: str, data: bytes) -> None:
        """Remember the first bytes of an object."""
        with self._lock:
            self._starts[address, etag] = data
            while len(self._starts) > _MOST_STARTS:
                del self._starts[next(iter(self._starts))]


class ObjectStream(io.RawIOBase):
    """The bytes of one object as it was listed; seekable.

    Args:
        store: The store.
        address: The object.
        size: Its size in bytes.
        etag: Its entity tag; if it changes, reading fails instead of mixing two versions.
        starts: The cache of first bytes; None to ask the store each time.
    """

    def __init__(
        self,
        store: Store,
        address: S3Address,
        size: int,
        etag: str,
        starts: Starts | None = None,
    ) -> None:
        self._store, self._address, self._starts = store, address, starts
        self._size, self._etag = size, etag
        self._position = 0
        self._body: Any = None

    @classmethod
    def buffered(
        cls,
        store: Store,
        address: S3Address,
        size: int,
        etag: str,
        starts: Starts | None = None,
    ) -> io.BufferedReader:
        """Return the object as a buffered file."""
        return io.BufferedReader(cls(store, address, size, etag, starts), BUFFER)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it; a connection at another position is closed."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset != self._position:
            self._drop()
            self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into `buffer` and return their number; 0 at the end.

        Raises:
            DataError: The object changed since it was listed.
            StoreUnavailableError: The store did not respond within its patience.
        """
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = b""
        if self._starts is not None and self._etag and not self._position:
            data = self._starts.get(self._address, self._etag)[:length]
        if not data:
            data = self._store.patience.run(
                f"read {self._address}", lambda: self._read_once(length), transient
            )
            if self._starts is not None and self._etag and not self._position:
                self._starts.keep(self._address, self._etag, data)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the connection and the file."""
        self._drop()
        super().close()

    def _read_once(self, length: int) -> bytes:
        """Return up to `length` bytes; after an error, the next call opens a new connection."""
        try:
            if self._body is None:
                self._body = self._store.open(self._address, self._position, self._etag)
            data = self._body.read(length)
            if not data:
                raise IncompleteReadError(actual_bytes=self._position, expected_bytes=self._size)
            return data
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
