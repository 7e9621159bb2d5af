"""Reads a CSV as arrow columns: parses blocks as numbers, and as text if that fails.

The grammar is RFC 4180 with LF or CRLF line ends: a value that begins with a quote continues to
the closing quote, across line ends; a quote inside an unquoted value is an ordinary character.
A line that breaks the grammar is bad, and reading continues at the next line. So is one with blanks
before a value in quotes, which would keep its quotes. The result does not depend on where the
blocks are cut.

Files that were joined have a header, or a byte order mark, in the middle. Among strings, these
would be values like any other, so they are invalid rows. A column that pandas or R wrote without a
name is recognized by the first records, which are read before the blocks.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.decompression import Pieces
from kfp_tfjob.components.prepare_data.source.header import (
    MOST_COLUMNS,
    Columns,
    Header,
    empty,
    other_delimiter,
    other_delimiter_fix,
    too_many_columns,
)
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Reader,
    null_numbers,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import (
    BLOCK,
    LONGEST_RECORD,
    ByteRange,
    Span,
    begin,
    too_long,
)
from kfp_tfjob.features import cells
from kfp_tfjob.features.cells import shown
from kfp_tfjob.options.data import BLANKS, DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import counted

_REPEATED = pa.dictionary(pa.int32(), pa.binary())
_HEADER_BLOCK = 1 << 16  # bytes; what is read again of each range of a file
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_LOOKED = 16  # records by which the start of a range, or a column without a name, is found
_LOOKED_BYTES = 1 << 20
_SHOWN = 1000  # bytes of a bad line that are kept for the message
_MARK = codecs.BOM_UTF8
_BLANKS = re.compile(rb"[ \t]+")
_BLANKS_OR_QUOTED = re.compile(rb'((?<![^ \t\n])"(?:[^"\n]++|"")*+"(?![^ \t\r\n]))|[ \t]+')
_AT_ENDS = re.compile(rb"(?m)^ +| +(?=\r?$)")


class _Remedy(NamedTuple):
    """What to do about a header that cannot be read, with the option to set where one is likely."""

    fix: str
    path: str = ""
    suggestion: str = ""


_LINE_ENDS = _Remedy("end each line with LF or CRLF, not with CR or several of them")


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
        quoted, plain = rb'"(?:[^"]++|"")*+"', rb'(?!")[^%b\r\n]*+' % comma
        value = rb"(?:%b|%b)" % (quoted, plain)
        self._record = re.compile(rb"%b(?:%b%b)*+\r?\n" % (value, comma, value))
        self._value = re.compile(rb"%b(?:%b|\r?\n)" % (value, comma))
        blanks = re.escape(cells.BLANKS.replace(delimiter, "").encode())
        # From the record's start, because a value in quotes may contain delimiters.
        self._indented = re.compile(
            rb"(?:%b%b)*?[%b]++%b[%b]*+(?:%b|\r?\n)" % (value, comma, blanks, quoted, blanks, comma)
        )

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

    def records(self, block: Block) -> Iterator[bytes]:
        """Yield the records of a block, each with its line end."""
        found = (match.group() for match in self._record.finditer(block.data))
        return (record for record in found if record.strip(b"\r\n"))

    def of_width(self, block: Block, columns: int) -> tuple[Block, BlockFaults]:
        """Return the records with this number of values, and the others as faults."""

        def rule(record: bytes) -> str:
            return "" if len(self._value.findall(record)) == columns else "columns"

        return self.without(block, rule)

    def without(self, block: Block, rule_of: Callable[[bytes], str]) -> tuple[Block, BlockFaults]:
        """Return the records that break no rule, and the others as faults.

        Args:
            block: The records.
            rule_of: Returns the key of faults.RULES that a record breaks; empty if none.
        """
        kept: list[bytes] = []
        lines, lost = array("q"), self._no_faults()
        for line, record in zip(block.lines.tolist(), self.records(block), strict=True):
            if rule := rule_of(record):
                lost.lost(line, rule, _shown(record))
            else:
                kept.append(record)
                lines.append(line)
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
            elif (b' "' in record or b'\t"' in record) and self._indented.match(record):
                bad.lost(line, "blank", _shown(record))
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
    """A CSV, or a range of it; its names are those of its header or of `data_options.names`.

    Attributes:
        nulls: The strings that mean a missing value.
    """

    is_text = True
    has_types = False
    takes_names = True

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        options: DataOptions,
        block: int = BLOCK,
        span: Span | None = None,
    ) -> None:
        self._name, self._options = name, options
        if options.delimiter == BLANKS:  # such a file has no ranges
            stream = io.BufferedReader(Pieces(_reduced(stream)), _HEADER_BLOCK)
        start = stream.tell() if span and not span.start else 0
        self.reach = ByteRange()
        self._records = self._records_of(stream, _HEADER_BLOCK if span else block)
        blocks = iter(self._records)
        self._held = self._take_names(blocks)
        self._blocks = chain(self._held, blocks)
        self._at_header = False
        if span:
            # What was read after the header may belong to another range.
            stream.seek(start)
            columns = len(self.schema)
            self.reach = begin(stream, span, lambda data: self._records.first_in(data, columns))
            self._records = self._records_of(stream, block)
            self._held, self._blocks = [], iter(self._records)
            self._at_header = options.names is None and not span.start
        self.nulls = pa.array(sorted({*options.null_values, ""}))
        self._direct = not len(null_numbers(options))

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return True: any text may be a CSV."""
        return True

    def _records_of(self, stream: IO[bytes], block: int) -> CsvRecords:
        return CsvRecords(stream, self._name, self._options.separator, block, self.reach)

    def _take_names(self, blocks: Iterator[Block]) -> list[Block]:
        """Set the columns by the first records.

        Returns:
            The blocks that were read, without the header.

        Raises:
            DataError: There is no header, or `data_options.names` does not fit the first records.
        """
        held, records = self._first_records(blocks)
        self.head = tuple(record.decode(errors="replace") for record in records)
        if self._options.names is not None:
            names = self._header = list(self._options.names)
            DataError.raise_if(self._names_problems(names, records))
        else:
            header = self._header_of(held[0], records)
            names = self._header = self._parsed_header(header, held[0])
            rest = _first_record(held[0].data)[1]
            held[0] = replace(held[0], data=rest, lines=held[0].lines[1:])
            rows = [self._fields(record) for record in records[1:]]
            if _have_row_names(names, rows):
                names, self.has_index = ["", *names], True
            elif names[0] == "":
                self.has_index = _count_up(rows)
        texts = {blank + name for name in self._header if name for blank in ("", " ")}
        self._names = pa.array([name.encode() for name in texts], pa.binary())
        self.schema = pa.schema([(name, pa.binary()) for name in names])
        return held

    def _first_records(self, blocks: Iterator[Block]) -> tuple[list[Block], list[bytes]]:
        """Read blocks until there are _LOOKED records, or one and _LOOKED_BYTES."""
        held: list[Block] = []
        records: list[bytes] = []
        looked = size = 0
        for block in blocks:
            looked += block.size
            if not held and not len(block.lines) and not block.bad.bad:
                if looked >= LONGEST_RECORD:
                    break
                continue  # empty lines
            held.append(block)
            count = min(_LOOKED - len(records), len(block.lines))  # empty lines may be millions
            for record in islice(self._records.records(block), count):
                if records and size + len(record) > _LOOKED_BYTES:
                    break
                records.append(record)
                size += len(record)
            if len(records) == _LOOKED or looked >= _LOOKED_BYTES:
                break
        if not held:
            raise empty(self._name)
        return held, records

    def _header_of(self, block: Block, records: Sequence[bytes]) -> bytes:
        """Return the first record; nothing if the line before it cannot be read.

        Raises:
            DataError: That line has a blank before a quote.
        """
        bad = next(iter(block.bad.examples), None)
        if bad is None or len(block.lines) and bad.line > block.lines[0]:
            return records[0] if records else b""
        if bad.rule == "blank":
            DataError.raise_if(filter(None, [block.bad.quote_problem()]))
        # Of UTF-16, half of each line end is taken for another line end.
        return bad.value.encode() if "\0" in bad.value else b""

    def _parsed_header(self, header: bytes, block: Block) -> list[str]:
        """Return the names in the header of the first block."""
        separator = self._options.separator
        columns = header.count(separator.encode()) + 1
        if columns > MOST_COLUMNS:
            raise DataError(too_many_columns(self._name, columns))
        try:
            text = header.decode()
            if not header or "\r" in text.rstrip("\r\n"):
                raise csv.Error("misplaced quotes or line ends")
            if "\0" in text:
                raise csv.Error("NUL characters")
            return [
                name.strip() for name in next(csv.reader([text], delimiter=separator, strict=True))
            ]
        except (UnicodeDecodeError, csv.Error) as error:
            bad = next(iter(block.bad.examples), None)
            received = bad.value if bad and not header else header.decode(errors="replace")
            remedy = _header_remedy(header) if header or '"' in received else _LINE_ENDS
            raise DataError(
                Problem(
                    f"{self._name}: the header cannot be read ({error})",
                    received=repr(received[:200]),
                    expected="the names of the columns on the first line, in UTF-8",
                    fix=remedy.fix,
                    path=remedy.path,
                    suggestion=remedy.suggestion,
                )
            ) from error

    def _names_problems(self, names: list[str], records: Sequence[bytes]) -> Iterator[Problem]:
        """Yield what is wrong with `data_options.names`, by the first records."""
        rows = [self._fields(record) for record in records]
        if not rows or any(len(row) == len(names) for row in rows):
            return
        values = counted(len(rows[0]), "value")
        delimiter = other_delimiter(Header(names, self.head), self._options)
        yield Problem(
            f"data_options.names does not have a name for each column of {self._name}",
            received=f"{counted(len(names), 'name')}, and {values} on the first line:"
            f" {self.head[0][:200].rstrip()!r}",
            expected="as many names as values",
            fix=other_delimiter_fix(delimiter)
            if delimiter
            else "correct data_options.names or data_options.delimiter",
            path="data_options.delimiter" if delimiter else "data_options.names",
            suggestion=delimiter,
        )

    def _fields(self, record: bytes) -> list[str]:
        """Return the values of a record without blanks around them."""
        text = record.decode(errors="replace")
        try:
            values = next(csv.reader([text], delimiter=self._options.separator), [])
        except csv.Error:  # a value that is very long
            values = text.split(self._options.separator)
        return [value.strip() for value in values]

    @property
    def first_fields(self) -> list[str]:
        """The fields of the first line, whether it is a header or not."""
        return self._fields(self.head[0].encode(errors="replace")) if self.head else []

    def first_values(self, places: Sequence[int]) -> list[pa.Array]:
        """Return the values of some columns in the first block, as text, before any chunk.

        Args:
            places: The places of the columns in a row, from 0.
        """
        held = next((block for block in self._held if len(block.lines)), None)
        if held is None:
            return [pa.array([], pa.binary()) for _ in places]
        block = held
        if all(name.encode() in block.data for name in self._header):
            block = self._without_joints(block)
        types = {str(place): pa.binary() for place in places}
        try:
            table = self._read(block, types)
        except pa.ArrowInvalid:
            table = self._read(self._records.of_width(block, len(self.schema))[0], types)
        return [_one(table[str(place)]) for place in places]

    @property
    def lines(self) -> int:
        """The lines that are read so far."""
        return self._records.lines

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns block by block: parsed as `columns` says, or as text if that fails."""
        for block in self._blocks:
            yield self._parse(self._rows(block), columns)

    def _rows(self, block: Block) -> Block:
        """Return a block without the header of the file."""
        if self._at_header and len(block.lines):
            self._at_header = False
            return replace(block, data=_first_record(block.data)[1], lines=block.lines[1:])
        return block

    def _without_joints(self, block: Block) -> Block:
        """Return a block without the records that only joined files have, which are faults."""
        block, lost = self._records.without(block, self._joint)
        lost.merge(block.bad)
        return replace(block, bad=lost)

    def _joint(self, record: bytes) -> str:
        """Return the rule that a record breaks where files were joined; empty for a row."""
        fields = self._fields(record.removeprefix(_MARK))
        if fields == self._header:
            return "header"
        if len(fields) == len(self._header) and {*fields} == {*self._header}:
            return "order"
        return "mark" if record.startswith(_MARK) else ""

    def _parse(self, block: Block, columns: Columns) -> Chunk:
        where = {name: i for i, name in enumerate(self.schema.names)}
        at = {name: where[name] for name in columns.all}
        if not block.data.isascii() and _MARK in block.data:
            block = self._without_joints(block)
        chunk = self._as_typed(block, at, columns) or self._as_text(block, at, columns)
        # In another header, the label is one of the names.
        if pc.any(pc.is_in(chunk.columns[columns.label], value_set=self._names)).as_py():
            block = self._without_joints(block)
            chunk = self._as_typed(block, at, columns) or self._as_text(block, at, columns)
        chunk.faults.merge(block.bad)
        return chunk

    def _as_typed(self, block: Block, at: dict[str, int], columns: Columns) -> Chunk | None:
        """Parse what the types can fast; None if there is nothing, or an invalid value."""
        parsed = {name: it for name, it in columns.parsed.items() if name not in columns.extra}
        # A number that means "missing" can be found only while the values are text.
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
        return Chunk(found, BlockFaults(self._name, block.lines), len(block.data), self.nulls)

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
        return Chunk(found, faults, size, self.nulls)

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
            arrow_csv.ParseOptions(delimiter=self._options.separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=self.nulls.to_pylist() if nulls else [],
                strings_can_be_null=False,
            ),
        )
        if table.num_rows != len(block.lines):
            raise RuntimeError(
                f"{self._name}: {len(block.lines)} records from line {block.lines[0]} on were"
                f" parsed as {table.num_rows} rows"
            )
        return table


def _reduced(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield text with one space in place of each run of blanks, and none around a line.

    Blanks in a value in quotes stay. A value that continues on the next line is not expected here.
    """
    rest, ended = b"", False
    while not ended:
        piece = stream.read(_HEADER_BLOCK)
        rest, ended = rest + piece, not piece
        end = len(rest) if ended or len(rest) > LONGEST_RECORD else rest.rfind(b"\n") + 1
        text, rest = rest[:end], rest[end:]
        if b'"' in text:
            text = _BLANKS_OR_QUOTED.sub(lambda match: match[1] or b" ", text)
        else:
            text = _BLANKS.sub(b" ", text)
        yield _AT_ENDS.sub(b"", text)


def _have_row_names(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether rows begin with a name of their own, as R writes it, which no header has.

    A row that only ends with a delimiter has an empty value more, too.
    """
    return (
        bool(rows)
        and all(len(row) == len(names) + 1 for row in rows)
        and any(row[-1] for row in rows)
        and all(row[0] for row in rows)
        and len({row[0] for row in rows}) == len(rows)
    )


def _count_up(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first values of rows are 0, 1, 2, ... or 1, 2, 3, ..."""
    firsts = [row[0] for row in rows if row]
    return any(firsts == [str(start + i) for i in range(len(firsts))] for start in (0, 1))


def _shown(record: bytes) -> str:
    return record[:_SHOWN].decode(errors="replace").rstrip("\r\n")


def _header_remedy(header: bytes) -> _Remedy:
    """Return what to do about a header that cannot be read."""
    path = "data_options.encoding"
    if b"\0" in header:  # every second byte, if the text is English
        wide = "utf-16-be" if header.startswith(b"\0") else "utf-16-le"
        fix = f"set {path}={wide} if the file is UTF-16, or write it as UTF-8"
        return _Remedy(fix, path, wide)
    if b"\r" in header.rstrip(b"\r\n"):
        return _LINE_ENDS
    try:
        header.decode()
    except UnicodeDecodeError:
        try:
            text = header[:200].decode("cp1252").rstrip("\r\n")
        except UnicodeDecodeError:
            fix = f"set {path} to that of the file, or write the file as UTF-8"
            return _Remedy(fix, path)
        fix = (
            f"set {path}=cp1252 if {text!r} is right, as in Western European files from Windows;"
            " otherwise, set it to that of the file, or write the file as UTF-8"
        )
        return _Remedy(fix, path, "cp1252")
    fix = "correct data_options.delimiter, or write the file as CSV in UTF-8 with one row on each"
    return _Remedy(f"{fix} line")


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
