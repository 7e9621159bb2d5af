"""Finds the records of a CSV, and the blocks of them that are parsed at once.

The grammar is RFC 4180 with LF or CRLF line ends: a value that begins with a quote continues to
the closing quote, across line ends; a quote inside an unquoted value is an ordinary character.
A line that breaks the grammar is bad, and reading continues at the next line. So is one with blanks
before a value in quotes, which would keep its quotes. The result does not depend on where the
blocks are cut. Called by the readers of CSV and Excel files, and to find the delimiter.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from kfp_tfjob.features import cells

from ...faults import BlockFaults
from .byte_range import LONGEST_RECORD, ByteRange, too_long

LOOKED = 16  # records by which the start of a range, or a column without a name, is found
PIECE = 1 << 16  # bytes that are read at once where little is needed
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_SHOWN = 1000  # bytes of a bad line that are kept for the message
_BLANKS = re.compile(rb"[ \t]+")
_BLANKS_OR_QUOTED = re.compile(rb'((?<![^ \t\n])"(?:[^"\n]++|"")*+"(?![^ \t\r\n]))|[ \t]+')
_AT_ENDS = re.compile(rb"(?m)^ +| +(?=\r?$)")


@dataclass(frozen=True)
class Block:
    """Whole records.

    Attributes:
        data: The records, each with its line end.
        lines: int64 of shape [records]: the line where each begins, from 1. Empty lines are not
            records.
        size: The bytes of the file that it covers.
        count: The lines of the file that it covers.
        bad: The lines with misplaced quotes.
    """

    data: bytes
    lines: np.ndarray
    size: int
    count: int
    bad: BlockFaults


class CsvRecords:
    """The blocks of one CSV, or of a range of it.

    Args:
        stream: The file, at the start of the range.
        name: The file's name, for messages.
        delimiter: One character.
        block: Bytes of a block.
        byte_range: The range; its position moves with the blocks.
    """

    def __init__(
        self, stream: IO[bytes], name: str, delimiter: str, block: int, byte_range: ByteRange
    ) -> None:
        self._stream, self._name, self._block, self._range = stream, name, block, byte_range
        # By byte: whether it may precede a quote that opens a value, and follow one that closes it.
        self._precedes_quote, self._follows_quote = np.zeros((2, 256), bool)
        self._precedes_quote[[*delimiter.encode(), _NEWLINE, _QUOTE]] = True
        self._follows_quote[[*delimiter.encode(), _NEWLINE, _RETURN, _QUOTE]] = True
        self._line = 1
        # Possessive quantifiers, so that a line that does not match fails without backtracking.
        separator = re.escape(delimiter.encode())
        quoted, plain = rb'"(?:[^"]++|"")*+"', rb'(?!")[^%b\r\n]*+' % separator
        value = rb"(?:%b|%b)" % (quoted, plain)
        self._record = re.compile(rb"%b(?:%b%b)*+\r?\n" % (value, separator, value))
        self._value = re.compile(rb"%b(?:%b|\r?\n)" % (value, separator))
        blanks = re.escape(cells.BLANKS.replace(delimiter, "").encode())
        # A value with blanks before or after its quotes. The search is from the record's start,
        # because a value in quotes may contain delimiters.
        self._indented = re.compile(
            rb"(?:%b%b)*?[%b]++%b[%b]*+(?:%b|\r?\n)"
            % (value, separator, blanks, quoted, blanks, separator)
        )

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks.

        Raises:
            DataError: A line is longer than LONGEST_RECORD.
        """
        buffered, used, ended = b"", 0, False
        while self._range.left:
            if not ended and (len(buffered) < self._block or not used):
                piece = self._stream.read(self._range.wanted(len(buffered), self._block))
                buffered, ended = buffered + piece, not piece
                if ended and buffered and not buffered.endswith(b"\n"):
                    buffered += b"\n"
            if not buffered:
                if ended:
                    return
                continue
            # While a quote stays open, more is read; each quick search still covers little.
            view = buffered[: 2 * self._block]
            block = self._quick(view[: self._range.cut(view)]) or self._careful(
                buffered, last=ended
            )
            used = block.size
            if used:
                self._line += block.count
                self._range.position += used
                buffered = buffered[used:]
                yield block

    @property
    def lines(self) -> int:
        """The lines that are in blocks so far."""
        return self._line - 1

    def first_in(self, data: bytes, columns: int) -> int:
        """Return where the first record begins in a piece of the file.

        The piece may begin within a quoted value. What follows tells: records with as many values
        as the header has names.

        Returns:
            The offset; 0 if there is no line end.
        """
        text = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(text == _NEWLINE)
        quotes = np.searchsorted(np.flatnonzero(text == _QUOTE), newlines)
        first = [newlines[quotes % 2 == within][:1] + 1 for within in (0, 1)]
        starts = [int(at[0]) for at in (*first, newlines[:1] + 1) if len(at)]
        return max(starts, key=lambda at: self._fitting(data, at, columns), default=0)

    def _fitting(self, data: bytes, position: int, columns: int) -> int:
        """Return how many of the next records are well formed and have this number of values."""
        for i in range(LOOKED):
            match = self._record.match(data, position)
            record = match.group() if match else b""
            if not match or (record.strip(b"\r\n") and self.width(record) != columns):
                return i
            position = match.end()
        return LOOKED

    def records(self, block: Block) -> Iterator[bytes]:
        """Yield the records of a block, each with its line end."""
        records = (match.group() for match in self._record.finditer(block.data))
        return (record for record in records if record.strip(b"\r\n"))

    def width(self, record: bytes) -> int:
        """Return the number of values in a record."""
        return len(self._value.findall(record))

    def of_width(self, block: Block, columns: int) -> tuple[Block, BlockFaults]:
        """Return the records with this number of values, and the others as faults."""

        def rule(record: bytes) -> str:
            return "" if self.width(record) == columns else "columns"

        return self.without(block, rule)

    def without(self, block: Block, rule_of: Callable[[bytes], str]) -> tuple[Block, BlockFaults]:
        """Return the records that break no rule, and the others as faults.

        Args:
            block: The records.
            rule_of: Returns the key of faults.RULES that a record breaks; empty if none.
        """
        good: list[bytes] = []
        lines, lost = array("q"), self._no_faults()
        for line, record in zip(block.lines.tolist(), self.records(block), strict=True):
            if rule := rule_of(record):
                lost.lost(line, rule, _shown(record))
            else:
                good.append(record)
                lines.append(line)
        return replace(block, data=b"".join(good), lines=np.array(lines, np.int64)), lost

    def _quick(self, data: bytes) -> Block | None:
        """Find the records of well-formed data; None for other data, or without a whole record."""
        text = np.frombuffer(data, np.uint8)
        newlines = ends = np.flatnonzero(text == _NEWLINE)
        quotes = None
        if b'"' in data:
            quotes = np.flatnonzero(text == _QUOTE)
            ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
        if not len(ends):
            return None
        size = int(ends[-1]) + 1
        starts = np.concatenate(([0], ends[:-1] + 1))
        if (ends - starts).max() >= LONGEST_RECORD:
            return None
        if not self._well_formed(text[:size], b"\r" in data, quotes):
            return None
        places = np.arange(len(starts)) if quotes is None else np.searchsorted(newlines, starts)
        length = ends - starts
        is_empty = (length == 0) | ((length == 1) & (text[starts] == _RETURN))
        lines = self._line + places[~is_empty]
        count = int(np.searchsorted(newlines, size))
        return Block(data[:size], lines, size, count, self._no_faults())

    def _well_formed(
        self, buffer: np.ndarray, has_returns: bool, quotes: np.ndarray | None
    ) -> bool:
        """Return whether every quote opens or closes a value and every return ends a line."""
        if has_returns:
            returns = np.flatnonzero(buffer == _RETURN)
            if (buffer[returns + 1] != _NEWLINE).any():
                return False
        if quotes is None:
            return True
        quotes = quotes[: np.searchsorted(quotes, len(buffer))]
        opening, closing = quotes[0::2], quotes[1::2]
        before = buffer[opening - 1]  # of the first byte: the last one, a newline
        return bool(
            self._precedes_quote[before].all() and self._follows_quote[buffer[closing + 1]].all()
        )

    def _careful(self, data: bytes, last: bool) -> Block:
        """Find the records of about one block one by one, and the bad lines."""
        good: list[bytes] = []
        lines = array("q")
        bad = self._no_faults()
        position, line = 0, self._line
        while position < min(len(data), self._block, self._range.left):
            limit = min(position + LONGEST_RECORD, len(data))
            line_end = data.find(b"\n", position, limit) + 1
            match = self._record.match(data, position, limit) if line_end else None
            if not match and not last and limit == len(data) < position + LONGEST_RECORD:
                break  # it may continue in data that is not read yet
            end = match.end() if match else line_end
            if not end:
                raise too_long(self._name, self._range.position + position)
            record = data[position:end]
            if not match:
                bad.lost(line, "quotes", _shown(record))
            elif (b' "' in record or b'\t"' in record) and self._indented.match(record):
                bad.lost(line, "blank", _shown(record))
            elif record.strip(b"\r\n"):
                good.append(record)
                lines.append(line)
            line += record.count(b"\n")
            position = end
        line_numbers = np.array(lines, np.int64)
        return Block(b"".join(good), line_numbers, position, line - self._line, bad)

    def _no_faults(self) -> BlockFaults:
        return BlockFaults(self._name, np.empty(0, np.int64))


def reduced(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield text with one space in place of each run of blanks, and none around a line.

    Blanks in a value in quotes stay. A value that continues on the next line is not expected here.
    """
    buffered, ended = b"", False
    while not ended:
        piece = stream.read(PIECE)
        buffered, ended = buffered + piece, not piece
        end = (
            len(buffered) if ended or len(buffered) > LONGEST_RECORD else buffered.rfind(b"\n") + 1
        )
        text, buffered = buffered[:end], buffered[end:]
        if b'"' in text:
            text = _BLANKS_OR_QUOTED.sub(lambda match: match[1] or b" ", text)
        else:
            text = _BLANKS.sub(b" ", text)
        yield _AT_ENDS.sub(b"", text)


def first_record(data: bytes) -> tuple[bytes, bytes]:
    """Return the first record that is not empty, and what follows it."""
    start = 0
    while True:
        end = data.index(b"\n", start) + 1
        while data.count(b'"', start, end) % 2 and end < len(data):
            end = data.index(b"\n", end) + 1
        if data[start:end].strip(b"\r\n"):
            return data[start:end], data[end:]
        start = end


def _shown(record: bytes) -> str:
    return record[:_SHOWN].decode(errors="replace").rstrip("\r\n")
