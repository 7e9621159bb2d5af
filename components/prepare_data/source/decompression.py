"""Decompresses files, and decodes their text to UTF-8; neither is in memory as a whole."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.storage.errors import DataError, Problem

_PIECE = 1 << 20  # bytes; what a small file unpacks to is never in memory as a whole
# Longer marks come first: UTF-32 begins with the mark of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_LONGEST_MARK = 4  # bytes
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes of the file


class Pieces(io.RawIOBase):
    """The bytes of an iterator as a stream."""

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


class _Borrowed:
    """A stream that Arrow cannot close: it does so when it is collected."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.read = stream.read

    def close(self) -> None:
        pass


@contextmanager
def unpacked(source: Source, file: SourceFile) -> Iterator[Any]:
    """Open a file, decompressed if it is packed with gzip or zstd.

    Raises:
        DataError: It is damaged, or changed since it was listed.
    """
    with source.raw(file) as raw:
        head = raw.read(4)
        raw.seek(0)
        packed = next((words for magic, words in _PACKED.items() if head.startswith(magic)), "")
        yield _buffered(_unpack(raw, file.name, packed)) if packed else raw


@contextmanager
def text_of(source: Source, file: SourceFile, encoding: str = "auto") -> Iterator[IO[bytes]]:
    """Open a file as UTF-8 without a byte order mark, decompressed.

    Raises:
        DataError: It is damaged, changed since it was listed, or is not in its encoding.
    """
    with unpacked(source, file) as stream:
        head = stream.peek(_LONGEST_MARK)[:_LONGEST_MARK]
        mark = next((mark for mark in _MARKS if head.startswith(mark)), b"")
        if mark and (encoding == "auto" or _MARKS[mark].startswith(encoding)):
            encoding = _MARKS[mark]
            stream.read(len(mark))
        if encoding in ("auto", "utf-8"):  # wrong bytes are faults of their rows
            yield stream
        else:
            yield _buffered(_recoded(stream, file.name, encoding))


def _buffered(pieces: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(Pieces(pieces), _PIECE)


def _unpack(raw: IO[bytes], name: str, packed: str) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(pa.PythonFile(_Borrowed(raw), "r"), packed)
    while True:
        try:
            piece = stream.read(_PIECE)
        except OSError as error:
            raise DataError(
                Problem(
                    f"{name} is damaged",
                    received=f"{type(error).__name__}: {error}",
                    expected=f"a {packed} file that unpacks to its end",
                    fix="write the file again",
                )
            ) from error
        if not piece:
            return
        yield piece


def _recoded(stream: IO[bytes], name: str, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    line, ended = 1, False
    while not ended:
        piece = stream.read(_PIECE)
        ended = not piece
        held = decoder.getstate()[0]  # the first bytes of a character
        try:
            text = decoder.decode(piece, ended)
        except UnicodeDecodeError as error:
            data = held + piece
            line += data[: error.start].decode(encoding, errors="ignore").count("\n")
            raise DataError(
                Problem(
                    f"{name}, line {line}: bytes that are not {encoding}",
                    received=data[error.start : error.start + 16].hex(" "),
                    expected=f"text in {encoding} to the end of the file",
                    fix="correct data_options.encoding, or write the file again as UTF-8",
                    path="data_options.encoding",
                )
            ) from error
        line += text.count("\n")
        if text:
            yield text.encode(errors="surrogatepass")
