"""A CSV cut into blocks of whole records, with the line in which each begins.

The grammar is that of RFC 4180, with either line end: a value that begins with a quote goes on to
the closing quote, over line ends too; a quote inside an unquoted value is an ordinary character.
What does not follow it is a bad line, and reading goes on at the next line. The result does not
depend on where the blocks are cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from storage.errors import DataError, Problem

BLOCK = 4 << 20  # bytes
LONGEST_RECORD = 16 << 20  # bytes; what is open longer was opened by mistake
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


@dataclass(frozen=True)
class Block:
    """Whole records.

    Attributes:
        data: The records, each with its line end.
        lines: int64 of shape [records]: the line in which each begins, from 1. Empty lines are no
            records.
        bad: Line and text of what is no record.
    """

    data: bytes
    lines: np.ndarray
    bad: list[tuple[int, str]]


class Records:
    """The blocks of one CSV.

    Args:
        stream: The bytes of the file.
        name: Name of the file, for messages.
        delimiter: One character.
        block: How many bytes to read at a time.
    """

    def __init__(self, stream: IO[bytes], name: str, delimiter: str, block: int = BLOCK) -> None:
        self._stream, self._name, self._block = stream, name, block
        self._delimiter = ord(delimiter)
        self._line = 1
        value = rb'(?:"(?:[^"]++|"")*+"|(?!")[^%b\r\n]*+)' % re.escape(delimiter.encode())
        self._record = re.compile(
            rb"%b(?:%b%b)*+\r?\n" % (value, re.escape(delimiter.encode()), value)
        )

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks.

        Raises:
            DataError: A line is longer than LONGEST_RECORD.
        """
        rest = b""
        while True:
            piece = self._stream.read(self._block)
            rest += piece
            if not piece and rest and not rest.endswith(b"\n"):
                rest += b"\n"
            if not rest:
                return
            used, block = self._quick(rest)
            if block is None or (not used and (not piece or len(rest) >= LONGEST_RECORD)):
                used, block = self._careful(rest, last=not piece)
            if used:
                self._line += rest.count(b"\n", 0, used)
                rest = rest[used:]
                yield block

    def _quick(self, data: bytes) -> tuple[int, Block | None]:
        """Find the records of well-formed data; None as block says that it is not."""
        buffer = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(buffer == _NEWLINE)
        ends, quotes = newlines, None
        if b'"' in data:
            quotes = np.flatnonzero(buffer == _QUOTE)
            ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
        if not len(ends):
            return 0, Block(b"", newlines, [])
        used = int(ends[-1]) + 1
        starts = np.concatenate(([0], ends[:-1] + 1))
        if (ends - starts).max() >= LONGEST_RECORD or not self._well_formed(buffer[:used], quotes):
            return 0, None
        lines = self._line + np.searchsorted(newlines, starts)
        length = ends - starts
        empty = (length == 0) | ((length == 1) & (buffer[starts] == _RETURN))
        return used, Block(data[:used], lines[~empty], [])

    def _well_formed(self, buffer: np.ndarray, quotes: np.ndarray | None) -> bool:
        """Tell whether every quote opens or closes a value and every return ends a line."""
        returns = np.flatnonzero(buffer == _RETURN)
        if len(returns) and (buffer[returns + 1] != _NEWLINE).any():
            return False
        if quotes is None:
            return True
        quotes = quotes[quotes < len(buffer)]
        opening, closing = quotes[0::2], quotes[1::2]
        before = np.where(opening > 0, buffer[opening - 1], _NEWLINE)
        after = buffer[closing + 1]
        return bool(
            np.isin(before, (self._delimiter, _NEWLINE, _QUOTE)).all()
            and np.isin(after, (self._delimiter, _NEWLINE, _RETURN, _QUOTE)).all()
        )

    def _careful(self, data: bytes, last: bool) -> tuple[int, Block]:
        """Find the records one by one, and the lines that are none."""
        good: list[bytes] = []
        lines: list[int] = []
        bad: list[tuple[int, str]] = []
        position, line = 0, self._line
        while position < len(data):
            limit = min(position + LONGEST_RECORD, len(data))
            match = self._record.match(data, position, limit)
            if not match and not last and limit == len(data) < position + LONGEST_RECORD:
                break  # it may go on in what is not read yet
            end = match.end() if match else data.find(b"\n", position, limit) + 1
            if not end:
                raise DataError(
                    Problem(
                        f"{self._name}, line {line}: the line is too long",
                        received=f"more than {LONGEST_RECORD >> 20} MiB without a line end",
                        expected="one row on each line, ended by a newline",
                        fix="write the file again as CSV, or as Parquet",
                    )
                )
            text = data[position:end]
            if not match:
                bad.append((line, text.decode(errors="replace").rstrip("\r\n")))
            elif text.strip(b"\r\n"):
                good.append(text)
                lines.append(line)
            line += text.count(b"\n")
            position = end
        return position, Block(b"".join(good), np.array(lines, np.int64), bad)
