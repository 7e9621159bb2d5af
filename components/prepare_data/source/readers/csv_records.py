"""Cuts a CSV into blocks of whole records, with the line number where each record begins.

The grammar is RFC 4180 with LF or CRLF line ends: a value that begins with a quote continues to
the closing quote, across line ends; a quote inside an unquoted value is an ordinary character.
A line that breaks the grammar is bad, and reading continues at the next line. The result does not
depend on where the blocks are cut.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from kfp_tfjob.components.prepare_data.faults import MOST_EXAMPLES
from kfp_tfjob.components.prepare_data.source.readers.byte_range import ByteRange
from kfp_tfjob.storage.errors import DataError, Problem

BLOCK = 4 << 20  # bytes
LONGEST_RECORD = 16 << 20  # bytes; a quote open for longer was opened by mistake
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_LOOKED = 16  # records by which the start of a range is found
_SHOWN = 1000  # bytes of a bad line that are kept for the message


@dataclass(frozen=True)
class Block:
    """Whole records.

    Attributes:
        data: The records, each with its line end.
        lines: int64 of shape [records]: the line where each begins, from 1. Empty lines are not
            records.
        bad: Line number and text of the first bad lines.
        lost: The number of bad lines.
    """

    data: bytes
    lines: np.ndarray
    bad: list[tuple[int, str]]
    lost: int = 0


class CsvRecords:
    """The blocks of one CSV.

    Args:
        stream: The bytes of the file.
        name: Name of the file, for messages.
        delimiter: One character.
        block: Bytes to read at a time.
        reach: The part of the file to read; None for all of it.
    """

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        delimiter: str,
        block: int = BLOCK,
        reach: ByteRange | None = None,
    ) -> None:
        self._stream, self._name, self._block = stream, name, block
        self._reach = reach or ByteRange()
        # By byte: what may stand before a quote that opens a value, and behind one that closes it.
        self._before, self._behind = np.zeros((2, 256), bool)
        self._before[[*delimiter.encode(), _NEWLINE, _QUOTE]] = True
        self._behind[[*delimiter.encode(), _NEWLINE, _RETURN, _QUOTE]] = True
        self._line = 1
        value = rb'(?:"(?:[^"]++|"")*+"|(?!")[^%b\r\n]*+)' % re.escape(delimiter.encode())
        self._record = re.compile(
            rb"%b(?:%b%b)*+\r?\n" % (value, re.escape(delimiter.encode()), value)
        )
        self._value = re.compile(rb"%b(?:%b|\r?\n)" % (value, re.escape(delimiter.encode())))
        self._odd = re.compile(rb'"|\r(?!\n)')

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks.

        Raises:
            DataError: A line is longer than LONGEST_RECORD.
        """
        rest, used, ended = b"", 0, False
        while self._reach.left:
            if not ended and (len(rest) < self._block or not used):
                piece = self._stream.read(self._reach.wanted(len(rest), self._block))
                rest, ended = rest + piece, not piece
                if ended and rest and not rest.endswith(b"\n"):
                    rest += b"\n"
            if not rest:
                if ended:
                    return
                continue
            # While a quote stays open, more is read; each quick search still covers little.
            view = rest[: 2 * self._block]
            used, lines, block = self._quick(view[: self._reach.cut(view)])
            if block is None or not used:
                used, block = self._careful(rest, last=ended)
                lines = rest.count(b"\n", 0, used)
            if used:
                self._line += lines
                self._reach.position += used
                rest = rest[used:]
                yield block

    @property
    def lines(self) -> int:
        """The lines that are in blocks so far."""
        return self._line - 1

    def first_in(self, data: bytes, columns: int) -> int:
        """Return where the first record begins in a piece of the file.

        The piece may begin within a quoted value. What follows tells: records with as many values
        as the header has names.

        Args:
            data: The piece.
            columns: The number of values in a record.

        Returns:
            The offset; 0 if there is no line end.
        """
        text = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(text == _NEWLINE)
        quotes = np.searchsorted(np.flatnonzero(text == _QUOTE), newlines)
        first = [newlines[quotes % 2 == within][:1] + 1 for within in (0, 1)]
        starts = [int(at[0]) for at in (*first, newlines[:1] + 1) if len(at)]
        return max(starts, key=lambda at: self._fitting(data, at, columns), default=0)

    def _fitting(self, data: bytes, at: int, columns: int) -> int:
        """Return how many of the next records are well formed and have this number of values."""
        for i in range(_LOOKED):
            match = self._record.match(data, at)
            record = match.group() if match else b""
            if not match or (record.strip(b"\r\n") and len(self._value.findall(record)) != columns):
                return i
            at = match.end()
        return _LOOKED

    def wrong_bytes(self, block: Block, columns: int) -> tuple[Block, list[tuple[int, str]]]:
        """Remove the records that are not UTF-8 and have the wrong number of values.

        Arrow cannot report such a record as text, and fails.

        Args:
            block: The block.
            columns: The number of values in a record.

        Returns:
            The remaining records, and the line and text of each record that was removed.
        """
        try:
            block.data.decode()
        except UnicodeDecodeError:
            pass
        else:
            return block, []
        found = (match.group() for match in self._record.finditer(block.data))
        kept: list[bytes] = []
        lines, lost = array("q"), []
        records = (record for record in found if record.strip(b"\r\n"))
        for line, record in zip(block.lines.tolist(), records, strict=True):
            text = record.decode(errors="replace")
            if text.encode() != record and len(self._value.findall(record)) != columns:
                lost.append((line, text.rstrip("\r\n")))
            else:
                kept.append(record)
                lines.append(line)
        rest = Block(b"".join(kept), np.array(lines, np.int64), block.bad, block.lost)
        return rest, lost

    def _quick(self, data: bytes) -> tuple[int, int, Block | None]:
        """Find the records of well-formed data; the block is None for other data.

        Returns:
            The bytes and lines of the block, and the block.
        """
        buffer = np.frombuffer(data, np.uint8)
        if b'"' not in data and b"\r" not in data and len(data) < LONGEST_RECORD:
            used = data.rfind(b"\n") + 1
            if used and data[0] != _NEWLINE and not _has_empty_line(buffer):
                count = int(np.count_nonzero(buffer == _NEWLINE))
                return (
                    used,
                    count,
                    Block(data[:used], np.arange(self._line, self._line + count), []),
                )
        newlines = np.flatnonzero(buffer == _NEWLINE)
        ends, quotes = newlines, None
        if b'"' in data:
            quotes = np.flatnonzero(buffer == _QUOTE)
            ends = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
        if not len(ends):
            return 0, 0, Block(b"", newlines, [])
        used = int(ends[-1]) + 1
        starts = np.concatenate(([0], ends[:-1] + 1))
        if (ends - starts).max() >= LONGEST_RECORD:
            return 0, 0, None
        if not self._well_formed(buffer[:used], b"\r" in data, quotes):
            return 0, 0, None
        lines = self._line + np.searchsorted(newlines, starts)
        block = Block(data[:used], lines[~_empty(buffer, starts, ends)], [])
        return used, int(np.searchsorted(newlines, used)), block

    def _well_formed(
        self, buffer: np.ndarray, has_returns: bool, quotes: np.ndarray | None
    ) -> bool:
        """Tell whether every quote opens or closes a value and every return ends a line."""
        if has_returns:
            returns = np.flatnonzero(buffer == _RETURN)
            if (buffer[returns + 1] != _NEWLINE).any():
                return False
        if quotes is None:
            return True
        quotes = quotes[: np.searchsorted(quotes, len(buffer))]
        opening, closing = quotes[0::2], quotes[1::2]
        before = buffer[opening - 1]  # of the first byte: the last one, a newline
        return bool(self._before[before].all() and self._behind[buffer[closing + 1]].all())

    def _careful(self, data: bytes, last: bool) -> tuple[int, Block]:
        """Find the records of about one block one by one, and the bad lines."""
        good: list[bytes] = []
        lines = array("q")
        bad: list[tuple[int, str]] = []
        position, line, lost, start = 0, self._line, 0, 0
        lines_end = self._reach.cut(data)
        while position < min(len(data), self._block, self._reach.left):
            limit = min(position + LONGEST_RECORD, len(data))
            odd = self._odd.search(data, position, min(limit, position + self._block))
            plain = odd.start() if odd else min(limit, position + self._block, lines_end)
            end = data.rfind(b"\n", position, plain) + 1
            if end:  # whole lines without a quote
                text = np.frombuffer(data, np.uint8, end - position, position)
                ends = np.flatnonzero(text == _NEWLINE)
                starts = np.concatenate(([0], ends[:-1] + 1))
                filled = np.flatnonzero(~_empty(text, starts, ends))
                lines.frombytes((line + filled).tobytes())
                line += len(ends)
                position = end
                continue
            line_end = data.find(b"\n", position, limit) + 1
            match = self._record.match(data, position, limit) if line_end else None
            if not match and not last and limit == len(data) < position + LONGEST_RECORD:
                break  # it may continue in data that is not read yet
            end = match.end() if match else line_end
            if not end:
                raise DataError(
                    Problem(
                        f"{self._name}, line {line + self._reach.lines_before()}: the line is too"
                        " long",
                        received=f"more than {LONGEST_RECORD >> 20} MiB without a line end",
                        expected="one row on each line, ended by a newline",
                        fix="write the file again as CSV, or as Parquet",
                    )
                )
            if not match:
                lost += 1
                if lost <= MOST_EXAMPLES:
                    text = data[position : min(end, position + _SHOWN)]
                    bad.append((line, text.decode(errors="replace").rstrip("\r\n")))
                good.append(data[start:position])
                start = end
            elif data[position:end].strip(b"\r\n"):
                lines.append(line)
            line += data.count(b"\n", position, end)
            position = end
        good.append(data[start:position])
        return position, Block(b"".join(good), np.array(lines, np.int64), bad, lost)


def _has_empty_line(text: np.ndarray) -> bool:
    """Tell whether a newline follows another one."""
    pairs = (text[start : start + (len(text) - start) // 2 * 2] for start in (0, 1))
    return any((pair.view(np.uint16) == _NEWLINE * 0x101).any() for pair in pairs)


def _empty(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Tell for each line, given its start and its newline, whether it is empty."""
    length = ends - starts
    return (length == 0) | ((length == 1) & (text[starts] == _RETURN))
