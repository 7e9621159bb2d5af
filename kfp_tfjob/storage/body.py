"""The body of a PUT: bytes, or a piece of a file that is never completely in memory.

A body is read twice: for its checksum, and to send it. If the file changes between the two, the
checksum is wrong and the store rejects the body. It never stores a mix of old and new bytes. Called
by the modules of this package that send a PUT.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import Problem, StepError

from .checksum import CHUNK, Checksum

# Bytes; a body up to this size is kept in memory, so its file is read once instead of twice.
SMALL = 64 << 10


class FileChangedError(StepError):
    """A file changed while it was being sent."""

    def __init__(self, path: object) -> None:
        super().__init__(
            Problem(
                f"{path} changed while it was being sent",
                expected="a file that does not change while it is being sent",
                fix="wait until it is complete, then send it again; or write it under a name that"
                " ends in .tmp, and rename it",
            )
        )


class FileUnreadableError(StepError):
    """A file could not be read."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(
            Problem(
                f"{path} cannot be read",
                received=str(error),
                expected="a file that this process may read",
                fix="correct its permissions, or check the disk",
            )
        )


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
        """Return the checksums as parameters of put_object and upload_part."""
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
            self._source = self._read_all(source)

    def digests(self, md5: bool = False) -> Digests:
        """Return the body's checksums; this reads the body for the first time.

        Args:
            md5: Whether to compute the MD5 too.

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
        view, position = memoryview(bytearray(min(CHUNK, self.size))), 0
        while count := self.read_into(view, position):
            yield view[:count]
            position += count

    def file(self) -> io.BufferedIOBase:
        """Return the body as a seekable file, which boto3 expects."""
        if isinstance(self._source, bytes):
            return io.BytesIO(self._source)
        return io.BufferedReader(_BodyFile(self))

    def read_into(self, view: memoryview, position: int) -> int:
        """Read bytes of a body in a file into a view.

        Args:
            view: The buffer to fill.
            position: The offset in the body, in bytes.

        Returns:
            The number of bytes read; 0 at the body's end.

        Raises:
            FileChangedError: The file became shorter.
        """
        assert isinstance(self._source, int)
        view = view[: self.size - position]
        if not view:
            return 0
        try:
            count = os.preadv(self._source, [view], self._offset + position)
        except OSError as error:  # must not look like a connection error
            raise FileUnreadableError(self._path, error) from error
        if not count:
            raise FileChangedError(self._path)
        return count

    def _read_all(self, fd: int) -> bytes:
        try:
            content = os.pread(fd, self.size, self._offset)
        except OSError as error:
            raise FileUnreadableError(self._path, error) from error
        if len(content) == self.size:
            return content
        # The system may return fewer bytes than requested; `chunks` asks again for the others.
        return b"".join(map(bytes, self.chunks()))


class _BodyFile(io.RawIOBase):
    """A body in a file, whose descriptor other threads read at other positions."""

    def __init__(self, body: Body) -> None:
        self._body, self._position = body, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._body.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._body.size}
        self._position = base[whence] + offset
        return self._position
