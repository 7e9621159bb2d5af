"""The body of a PUT: bytes, or a piece of a file that is never completely in memory.

A body is read twice: for its checksum, and to send it. If the file changes between the two, the
checksum is wrong and the store refuses the body. It never stores a mix of old and new bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.storage.checksum import CHUNK, Checksum
from kfp_tfjob.storage.errors import Problem, StepError

SMALL = 64 << 10  # bytes; a body up to this size is read once


class FileChangedError(StepError):
    """A file changed while it was being sent."""

    def __init__(self, path: object) -> None:
        super().__init__(Problem(f"{path} changed while it was being sent"))


class FileUnreadableError(StepError):
    """A file could not be read."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(Problem(f"{path} cannot be read", received=str(error)))


def open_file(path: Path | str) -> int:
    """Open a regular file and return its descriptor, which the caller closes.

    If a link or a pipe has replaced the file, the call neither follows nor waits for it.

    Raises:
        FileChangedError: The file is gone.
        FileUnreadableError: The file cannot be read, or is not a regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise FileChangedError(path) from error
    except OSError as error:
        raise FileUnreadableError(path, error) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileUnreadableError(path, OSError("it is not a regular file"))
    return fd


@dataclass(frozen=True)
class Digests:
    """The checksums of a body.

    Attributes:
        crc: Its CRC64NVME.
        md5: Its MD5; empty if not requested.
    """

    crc: Checksum
    md5: bytes = b""

    def parameters(self) -> dict[str, str]:
        """Return them as parameters of put_object and upload_part."""
        md5 = {"ContentMD5": base64.b64encode(self.md5).decode()} if self.md5 else {}
        return {"ChecksumCRC64NVME": self.crc.base64, **md5}


class Body:
    """A piece of an open file, or bytes.

    Args:
        source: Bytes, or a file descriptor.
        size: Size of the body in bytes.
        offset: Where the body begins in the file.
        path: The file's name in errors.
    """

    def __init__(self, source: bytes | int, size: int, offset: int = 0, path: object = "") -> None:
        self._source, self.size, self._offset, self._path = source, size, offset, path
        if isinstance(source, int) and size <= SMALL:
            self._source = self._whole(source)

    def digests(self, md5: bool = False) -> Digests:
        """Read the body for the first time.

        Raises:
            FileChangedError: The file became shorter.
        """
        crc, sum_md5 = Checksum(), hashlib.md5(usedforsecurity=False) if md5 else None
        for chunk in self.chunks():
            crc.update(chunk)
            if sum_md5:
                sum_md5.update(chunk)
        return Digests(crc, sum_md5.digest() if sum_md5 else b"")

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the chunks to send; each is valid until the next one.

        Raises:
            FileChangedError: The file became shorter.
        """
        if isinstance(self._source, bytes):
            yield self._source
            return
        view, offset, end = (
            memoryview(bytearray(min(CHUNK, self.size))),
            self._offset,
            self._offset + self.size,
        )
        while offset < end:
            count = self._fill(view[: min(len(view), end - offset)], offset)
            yield view[:count]
            offset += count

    def _whole(self, fd: int) -> bytes:
        try:
            data = os.pread(fd, self.size, self._offset)
        except OSError as error:
            raise FileUnreadableError(self._path, error) from error
        if len(data) == self.size:
            return data
        return b"".join(map(bytes, self.chunks()))

    def _fill(self, view: memoryview, offset: int) -> int:
        assert isinstance(self._source, int)
        try:
            count = os.preadv(self._source, [view], offset)
        except OSError as error:  # must not look like a connection error
            raise FileUnreadableError(self._path, error) from error
        if not count:
            raise FileChangedError(self._path)
        return count
