"""Decompresses files, and decodes their text to UTF-8; neither is in memory as a whole.

Called by the readers of text and of compressed files.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from kfp_tfjob.common.errors import DataError, Problem

from .files import Source, SourceFile

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
# The control characters of ISO 8859, which no text has: in place of them, Windows has letters.
_CONTROLS = re.compile("[\x80-\x9f]")
_OF_WINDOWS = {
    "iso8859-1": "cp1252",
    "iso8859-2": "cp1250",
    "iso8859-7": "cp1253",
    "iso8859-9": "cp1254",
    "iso8859-15": "cp1252",
}
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
        if mark:
            if encoding not in ("auto", "utf-8-sig") and not _MARKS[mark].startswith(encoding):
                raise DataError(_other_encoding(file.name, encoding, _MARKS[mark]))
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


def _other_encoding(name: str, encoding: str, detected: str) -> Problem:
    """Describe a file whose bytes are text in another encoding than `data_options.encoding`."""
    return Problem(
        f"{name} is not text in {encoding}, which data_options.encoding names",
        received=f"text in {detected}",
        expected=encoding,
        fix="remove data_options.encoding",
        path="data_options.encoding",
        suggestion="auto",
    )


class _Checked:
    """Decodes the pieces of a file, and refuses what is text in another encoding.

    In most encodings, any bytes are text. Two errors show nevertheless: UTF-8, because other text
    hardly ever is valid UTF-8, and text of Windows under the name of ISO 8859.
    """

    def __init__(self, name: str, encoding: str) -> None:
        self._name, self._encoding = name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._may_be_utf8 = not encoding.startswith("utf")
        self._line = 1

    def decoded(self, piece: bytes, ended: bool) -> str:
        """Return the text of the next piece.

        Raises:
            DataError: It is not in the encoding.
        """
        incomplete = self._decoder.getstate()[0]  # the first bytes of a character
        if self._may_be_utf8 and not piece.isascii():
            self._may_be_utf8 = False
            if _is_utf8(piece):
                raise DataError(_other_encoding(self._name, self._encoding, "UTF-8"))
        try:
            text = self._decoder.decode(piece, ended)
        except UnicodeDecodeError as error:
            data = incomplete + piece
            before = data[: error.start].decode(self._encoding, errors="ignore")
            raise self._wrong(before, data[error.start : error.start + 16]) from error
        if not self._encoding.startswith("utf") and (control := _CONTROLS.search(text)):
            position = control.start()
            sample = text[position : position + 16].encode(self._encoding, errors="replace")
            raise self._wrong(text[:position], sample, _OF_WINDOWS.get(self._encoding, ""))
        self._line += text.count("\n")
        return text

    def _wrong(self, before: str, data: bytes, meant: str = "") -> DataError:
        return DataError(
            Problem(
                f"{self._name}, line {self._line + before.count(chr(10))}: bytes that are not text"
                f" in {self._encoding}",
                received=data.hex(" "),
                expected=f"text in {self._encoding} to the end of the file",
                fix=f"set data_options.encoding={meant}, as Windows writes these bytes, or write"
                " the file again as UTF-8"
                if meant
                else "correct data_options.encoding, or write the file again as UTF-8",
                path="data_options.encoding",
                suggestion=meant,
            )
        )


def _is_utf8(piece: bytes) -> bool:
    """Return whether a piece of a file, which may end within a character, is UTF-8 beyond ASCII."""
    try:
        return not codecs.getincrementaldecoder("utf-8")().decode(piece).isascii()
    except UnicodeDecodeError:
        return False


def _recoded(stream: IO[bytes], name: str, encoding: str) -> Iterator[bytes]:
    checked, ended = _Checked(name, encoding), False
    while not ended:
        piece = stream.read(_PIECE)
        ended = not piece
        if text := checked.decoded(piece, ended):
            yield text.encode(errors="surrogatepass")
