"""Reads an object as a file; a broken connection is reopened at the same byte."""

from __future__ import annotations

import io
from typing import Any

from botocore.exceptions import IncompleteReadError

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.failures import transient
from kfp_tfjob.storage.store import Store

BUFFER = 1 << 20  # bytes per read from the connection


class ObjectStream(io.RawIOBase):
    """The bytes of one object as it was listed; seekable.

    Args:
        store: The store.
        address: The object.
        size: Its size in bytes.
        etag: Its entity tag; if it changes, reading fails instead of mixing two versions.
    """

    def __init__(self, store: Store, address: S3Address, size: int, etag: str) -> None:
        self._store, self._address = store, address
        self._size, self._etag = size, etag
        self._position = 0
        self._body: Any = None

    @classmethod
    def buffered(cls, store: Store, address: S3Address, size: int, etag: str) -> io.BufferedReader:
        """Return the object as a buffered file."""
        return io.BufferedReader(cls(store, address, size, etag), BUFFER)

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
        """Move to a position; a connection at a different position is dropped."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset != self._position:
            self._drop()
            self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes.

        Raises:
            DataError: The object changed since it was listed.
            StoreUnavailableError: The store did not answer within its patience.
        """
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        data = self._store.patience.run(
            f"read {self._address}", lambda: self._some(wanted), transient
        )
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Drop the connection."""
        self._drop()
        super().close()

    def _some(self, wanted: int) -> bytes:
        try:
            if self._body is None:
                self._body = self._store.open(self._address, self._position, self._etag)
            data = self._body.read(wanted)
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
