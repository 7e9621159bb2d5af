"""Reads a CSV as arrow columns: parses blocks as numbers, and as text if that fails.

The grammar is RFC 4180 with LF or CRLF line ends: a value that begins with a quote continues to
the closing quote, across line ends; a quote inside an unquoted value is an ordinary character.
A line that breaks the grammar is bad, and reading continues at the next line. The result does not
depend on where the blocks are cut.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.header import (
    MOST_COLUMNS,
    Columns,
    empty,
    too_many_columns,
)
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Reader,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import (
    BLOCK,
    LONGEST_RECORD,
    ByteRange,
    Span,
    begin,
    too_long,
)
from kfp_tfjob.features.cells import shown
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

_REPEATED = pa.dictionary(pa.int32(), pa.binary())
_HEADER_BLOCK = 1 << 16  # bytes; what is read again of each range of a file
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
    """The blocks of one CSV, or of a range of it."""

    def __init__(
        self, stream: IO[bytes], name: str, delimiter: str, block: int, reach: ByteRange
    ) -> None:
        self._stream, self._name, self._block, self._reach = stream, name, block, reach
        # By byte: what may stand before a quote that opens a value, and behind one that closes it.
        self._before, self._behind = np.zeros((2, 256), bool)
        self._before[[*delimiter.encode(), _NEWLINE, _QUOTE]] = True
        self._behind[[*delimiter.encode(), _NEWLINE, _RETURN, _QUOTE]] = True
        self._line = 1
        comma = re.escape(delimiter.encode())
        value = rb'(?:"(?:[^"]++|"")*+"|(?!")[^%b\r\n]*+)' % comma
        self._record = re.compile(rb"%b(?:%b%b)*+\r?\n" % (value, comma, value))
        self._value = re.compile(rb"%b(?:%b|\r?\n)" % (value, comma))

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
            block = self._quick(view[: self._reach.cut(view)]) or self._careful(rest, last=ended)
            used = block.size
            if used:
                self._line += block.count
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

    def of_width(self, block: Block, columns: int) -> tuple[Block, BlockFaults]:
        """Return the records with this number of values, and the others as faults."""
        kept: list[bytes] = []
        lines, lost = array("q"), self._no_faults()
        found = (match.group() for match in self._record.finditer(block.data))
        records = (record for record in found if record.strip(b"\r\n"))
        for line, record in zip(block.lines.tolist(), records, strict=True):
            if len(self._value.findall(record)) == columns:
                kept.append(record)
                lines.append(line)
            else:
                lost.lost(line, "columns", _shown(record))
        return replace(block, data=b"".join(kept), lines=np.array(lines, np.int64)), lost

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
        return bool(self._before[before].all() and self._behind[buffer[closing + 1]].all())

    def _careful(self, data: bytes, last: bool) -> Block:
        """Find the records of about one block one by one, and the bad lines."""
        good: list[bytes] = []
        lines = array("q")
        bad = self._no_faults()
        position, line = 0, self._line
        while position < min(len(data), self._block, self._reach.left):
            limit = min(position + LONGEST_RECORD, len(data))
            line_end = data.find(b"\n", position, limit) + 1
            match = self._record.match(data, position, limit) if line_end else None
            if not match and not last and limit == len(data) < position + LONGEST_RECORD:
                break  # it may continue in data that is not read yet
            end = match.end() if match else line_end
            if not end:
                raise too_long(self._name, self._reach.position + position)
            record = data[position:end]
            if not match:
                bad.lost(line, "quotes", _shown(record))
            elif record.strip(b"\r\n"):
                good.append(record)
                lines.append(line)
            line += record.count(b"\n")
            position = end
        found = np.array(lines, np.int64)
        return Block(b"".join(good), found, position, line - self._line, bad)

    def _no_faults(self) -> BlockFaults:
        return BlockFaults(self._name, np.empty(0, np.int64))


class CsvTable(Reader):
    """A CSV with a header, or its header and a range of it."""

    is_text = True

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        options: DataOptions,
        block: int = BLOCK,
        span: Span | None = None,
    ) -> None:
        self._name, self._options = name, options
        begins = span is None or not span.start
        self.reach = begin(stream, span) if begins else ByteRange()
        size = block if begins else _HEADER_BLOCK
        self._records = CsvRecords(stream, name, options.delimiter, size, self.reach)
        self._blocks = iter(self._records)
        self._first: Block | None = self._take_header()
        if not begins:
            columns = len(self.schema)
            self.reach = begin(stream, span, lambda data: self._records.first_in(data, columns))
            self._records = CsvRecords(stream, name, options.delimiter, block, self.reach)
            self._blocks, self._first = iter(self._records), None
        numbers = [float(value) for value in options.null_values if is_number(value)]
        wholes = {int(value) for value in numbers if value.is_integer()}
        # pandas writes -999 as -999.0 beside missing values.
        same = [text for value in wholes for text in (f"{value}", f"{value}.0")]
        self._nulls = pa.array(sorted({*options.null_values, *same, ""}))
        # A number that means "missing" can be found only while the values are text.
        self._direct = not numbers

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return True: any text may be a CSV."""
        return True

    def _take_header(self) -> Block:
        looked, block = 0, next(self._blocks, None)
        while block and not len(block.lines) and not block.bad.bad and looked < LONGEST_RECORD:
            looked += len(block.data)
            block = next(self._blocks, None)
        if block is None or looked >= LONGEST_RECORD:
            raise empty(self._name)
        first = next(iter(block.bad.examples), None)
        lost = first and (not len(block.lines) or first.line < block.lines[0])
        header, rest = (b"", b"") if lost else _first_record(block.data)
        columns = header.count(self._options.delimiter.encode()) + 1
        if columns > MOST_COLUMNS:
            raise DataError(too_many_columns(self._name, columns))
        try:
            text = header.decode()
            if lost or "\r" in text.rstrip("\r\n"):
                raise ValueError("misplaced quotes or line ends")
            if "\0" in text:
                raise ValueError("NUL characters")
            reader = csv.reader([text], delimiter=self._options.delimiter, strict=True)
            names = [name.strip() for name in next(reader)]
            self.schema = pa.schema([(name, pa.binary()) for name in names])
        except (ValueError, csv.Error) as error:
            received = first.value if first and lost else header.decode(errors="replace")
            raise DataError(
                Problem(
                    f"{self._name}: the header cannot be read ({error})",
                    received=repr(received[:200]),
                    expected="the names of the columns on the first line, in UTF-8",
                    fix=_header_fix(header),
                )
            ) from error
        return replace(block, data=rest, lines=block.lines[1:])

    @property
    def lines(self) -> int:
        """The lines that are read so far."""
        return self._records.lines

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns block by block: parsed as `columns` says, or as text if that fails."""
        if self._first:
            yield self._parse(self._first, columns)
        for block in self._blocks:
            yield self._parse(block, columns)

    def _parse(self, block: Block, columns: Columns) -> Chunk:
        where = {name: i for i, name in enumerate(self.schema.names)}
        at = {name: where[name] for name in columns.all}
        chunk = self._as_typed(block, at, columns) or self._as_text(block, at, columns)
        chunk.faults.merge(block.bad)
        return chunk

    def _as_typed(self, block: Block, at: dict[str, int], columns: Columns) -> Chunk | None:
        """Parse what the types can fast; None if there is nothing, or an invalid value."""
        parsed = {name: it for name, it in columns.parsed.items() if name not in columns.extra}
        if not parsed or not self._direct or b"\0" in block.data:
            return None
        types = self._types(at, columns)
        types |= {str(at[name]): it.arrow_type for name, it in parsed.items()}
        try:
            table = self._read(block, types, nulls=columns.gaps)
        except pa.ArrowInvalid:
            return None
        found = {name: _one(table[str(i)]) for name, i in at.items()}
        if not all(it.holds(found[name]) for name, it in parsed.items()):
            return None
        return Chunk(found, BlockFaults(self._name, block.lines), len(block.data), self._nulls)

    def _types(self, at: dict[str, int], columns: Columns) -> dict[str, pa.DataType]:
        """Return the types of columns of text: binary, or a dictionary where strings may repeat."""
        repeated = columns.texts - {columns.label, *columns.extra}
        return {str(i): _REPEATED if name in repeated else pa.binary() for name, i in at.items()}

    def _as_text(self, block: Block, at: dict[str, int], columns: Columns) -> Chunk:
        """Split a block into values, and mark the rows that cannot be split."""
        size, lost = len(block.data), None
        has_nul = b"\0" in block.data
        types = {str(i): pa.binary() for i in at.values()} if has_nul else self._types(at, columns)
        try:
            table = self._read(block, types)
        except pa.ArrowInvalid:  # of a row with more or fewer values
            block, lost = self._records.of_width(block, len(self.schema))
            table = self._read(block, types)
        faults = BlockFaults(self._name, block.lines)
        if lost:
            faults.merge(lost)
        found = {name: _one(table[str(i)]) for name, i in at.items()}
        if has_nul:
            for name, column in found.items():
                hit = pc.find_substring(column, b"\0").to_numpy(zero_copy_only=False) >= 0
                faults.mark(hit, "nul", name, lambda i, column=column: shown(column, i))
        return Chunk(found, faults, size, self._nulls)

    def _read(self, block: Block, types: dict[str, pa.DataType], nulls: bool = False) -> pa.Table:
        """Parse a block, whose columns are named by their numbers."""
        names = [str(i) for i in range(len(self.schema))]
        if not len(block.lines):
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(
                use_threads=False, column_names=names, block_size=len(block.data) + 1
            ),
            arrow_csv.ParseOptions(delimiter=self._options.delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=self._nulls.to_pylist() if nulls else [],
                strings_can_be_null=False,
            ),
        )
        if table.num_rows != len(block.lines):
            raise RuntimeError(
                f"{self._name}: {len(block.lines)} records from line {block.lines[0]} on were"
                f" parsed as {table.num_rows} rows"
            )
        return table


def _shown(record: bytes) -> str:
    return record[:_SHOWN].decode(errors="replace").rstrip("\r\n")


def _header_fix(header: bytes) -> str:
    if b"\0" in header:  # every second byte, if the text is English
        wide = "utf-16-be" if header.startswith(b"\0") else "utf-16-le"
        return f"set data_options.encoding={wide} if the file is UTF-16, or write it as UTF-8"
    try:
        header.decode()
    except UnicodeDecodeError:
        return "set data_options.encoding, for example latin-1, or write the file as UTF-8"
    return (
        "correct data_options.delimiter, or write the file as CSV in UTF-8 with one row on each"
        " line"
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _first_record(data: bytes) -> tuple[bytes, bytes]:
    """Return the first record that is not empty, and what follows it."""
    start = 0
    while True:
        end = data.index(b"\n", start) + 1
        while data.count(b'"', start, end) % 2 and end < len(data):
            end = data.index(b"\n", end) + 1
        if data[start:end].strip(b"\r\n"):
            return data[start:end], data[end:]
        start = end
