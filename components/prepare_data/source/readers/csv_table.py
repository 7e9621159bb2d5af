"""Reads a CSV as arrow columns: parses blocks of records as numbers, and as text if that fails.

Files that were joined have a header, or a byte order mark, in the middle. Among strings, these
would be values like any other, so they are invalid rows. A column that pandas or R wrote without a
name is recognized by the first records, which are read before the blocks. Called by
`open_table.py`, and by the reader of Excel files.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.features.cells import as_array, shown
from kfp_tfjob.features.null_values import null_numbers
from kfp_tfjob.options.data import BLANKS, DataOptions

from ...faults import BlockFaults
from ..column_names import (
    MOST_COLUMNS,
    Columns,
    Header,
    empty,
    fields_of,
    other_delimiter,
    other_delimiter_fix,
    too_many_columns,
)
from ..decoding import Pieces
from .arrow_table import Chunk, Reader
from .byte_range import BLOCK, LONGEST_RECORD, ByteRange, Span, begin
from .csv_records import LOOKED, PIECE, Block, CsvRecords, first_record, reduced

_REPEATED = pa.dictionary(pa.int32(), pa.binary())
_LOOKED_BYTES = 1 << 20
_MARK = codecs.BOM_UTF8


class _Remedy(NamedTuple):
    """The fix for a header that cannot be read, with the option to set where one is likely."""

    fix: str
    path: str = ""
    suggestion: str = ""


_LINE_ENDS = _Remedy("end each line with LF or CRLF, not with CR or several of them")


class CsvTable(Reader):
    """A CSV, or a range of it, with names from its header or from `data_options.names`.

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
        if options.delimiter == BLANKS:  # such a file is not split into ranges
            stream = io.BufferedReader(Pieces(reduced(stream)), PIECE)
        start = stream.tell() if span and not span.start else 0
        self.reach = ByteRange()
        self._records = self._records_of(stream, PIECE if span else block)
        blocks = iter(self._records)
        self._held = self._take_names(blocks)
        self._blocks = chain(self._held, blocks)
        self._at_header = False
        if span:
            # The bytes read after the header may belong to another range.
            stream.seek(start)
            columns = len(self.schema)
            self.reach = begin(stream, span, lambda data: self._records.first_in(data, columns))
            self._records = self._records_of(stream, block)
            self._held, self._blocks = [], iter(self._records)
            self._at_header = options.names is None and not span.start
        self.nulls = pa.array(sorted({*options.null_values, ""}))
        self._direct = not len(null_numbers(options.null_values))

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
        first_blocks, records = self._first_records(blocks)
        self.head = tuple(record.decode(errors="replace") for record in records)
        if self._options.names is not None:
            names = self._header = list(self._options.names)
            DataError.raise_if(self._names_problems(names, records))
        else:
            header = self._header_of(first_blocks[0], records)
            names = self._header = self._parsed_header(header, first_blocks[0])
            after_header = first_record(first_blocks[0].data)[1]
            first_blocks[0] = replace(
                first_blocks[0], data=after_header, lines=first_blocks[0].lines[1:]
            )
            rows = [self._fields(record) for record in records[1:]]
            if _have_row_names(names, rows):
                names, self.has_index = ["", *names], True
            elif names[0] == "":
                self.has_index = _count_up(rows)
        texts = {blank + name for name in self._header if name for blank in ("", " ")}
        self._names = pa.array([name.encode() for name in texts], pa.binary())
        self.schema = pa.schema([(name, pa.binary()) for name in names])
        return first_blocks

    def _first_records(self, blocks: Iterator[Block]) -> tuple[list[Block], list[bytes]]:
        """Read blocks until there are LOOKED records, or one and _LOOKED_BYTES."""
        first_blocks: list[Block] = []
        records: list[bytes] = []
        looked = size = 0
        for block in blocks:
            looked += block.size
            if not first_blocks and not len(block.lines) and not block.bad.bad:
                if looked >= LONGEST_RECORD:
                    break
                continue  # empty lines
            first_blocks.append(block)
            count = min(LOOKED - len(records), len(block.lines))  # empty lines may be millions
            for record in islice(self._records.records(block), count):
                if records and size + len(record) > _LOOKED_BYTES:
                    break
                records.append(record)
                size += len(record)
            if len(records) == LOOKED or looked >= _LOOKED_BYTES:
                break
        if not first_blocks:
            raise empty(self._name)
        return first_blocks, records

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
        values = fields_of(record.decode(errors="replace"), self._options.separator)
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
        first_block = next((block for block in self._held if len(block.lines)), None)
        if first_block is None:
            return [pa.array([], pa.binary()) for _ in places]
        block = first_block
        if all(name.encode() in block.data for name in self._header):
            block = self._without_joints(block)
        types = {str(place): pa.binary() for place in places}
        try:
            table = self._read(block, types)
        except pa.ArrowInvalid:
            table = self._read(self._records.of_width(block, len(self.schema))[0], types)
        return [as_array(table[str(place)]) for place in places]

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
            return replace(block, data=first_record(block.data)[1], lines=block.lines[1:])
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
        indices = {name: i for i, name in enumerate(self.schema.names)}
        index_of = {name: indices[name] for name in columns.all}
        if not block.data.isascii() and _MARK in block.data:
            block = self._without_joints(block)
        chunk = self._as_typed(block, index_of, columns) or self._as_text(block, index_of, columns)
        # In another header, the label is one of the names.
        if pc.any(pc.is_in(chunk.columns[columns.label], value_set=self._names)).as_py():
            block = self._without_joints(block)
            chunk = self._as_typed(block, index_of, columns) or self._as_text(
                block, index_of, columns
            )
        chunk.faults.merge(block.bad)
        return chunk

    def _as_typed(self, block: Block, index_of: dict[str, int], columns: Columns) -> Chunk | None:
        """Parse what the types can fast; None if there is nothing, or an invalid value."""
        parsed = {
            name: column_type
            for name, column_type in columns.parsed.items()
            if name not in columns.extra
        }
        # A number that means "missing" can be found only while the values are text.
        if not parsed or not self._direct or b"\0" in block.data:
            return None
        types = self._types(index_of, columns)
        types |= {
            str(index_of[name]): column_type.arrow_type for name, column_type in parsed.items()
        }
        try:
            table = self._read(block, types, nulls=columns.gaps)
        except pa.ArrowInvalid:
            return None
        values = {name: as_array(table[str(i)]) for name, i in index_of.items()}
        if not all(column_type.are_valid(values[name]) for name, column_type in parsed.items()):
            return None
        return Chunk(values, BlockFaults(self._name, block.lines), len(block.data), self.nulls)

    def _types(self, at: dict[str, int], columns: Columns) -> dict[str, pa.DataType]:
        """Return the types of columns of text: binary, or a dictionary where strings may repeat."""
        repeated = columns.texts - {columns.label, *columns.extra}
        return {str(i): _REPEATED if name in repeated else pa.binary() for name, i in at.items()}

    def _as_text(self, block: Block, index_of: dict[str, int], columns: Columns) -> Chunk:
        """Split a block into values, and mark the rows that cannot be split."""
        size, lost = len(block.data), None
        has_nul = b"\0" in block.data
        types = (
            {str(i): pa.binary() for i in index_of.values()}
            if has_nul
            else self._types(index_of, columns)
        )
        try:
            table = self._read(block, types)
        except pa.ArrowInvalid:  # of a row with more or fewer values
            block, lost = self._records.of_width(block, len(self.schema))
            table = self._read(block, types)
        faults = BlockFaults(self._name, block.lines)
        if lost:
            faults.merge(lost)
        values = {name: as_array(table[str(i)]) for name, i in index_of.items()}
        if has_nul:
            for name, column in values.items():
                hit = pc.find_substring(column, b"\0").to_numpy(zero_copy_only=False) >= 0
                faults.mark(hit, "nul", name, lambda i, column=column: shown(column, i))
        return Chunk(values, faults, size, self.nulls)

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


def _header_remedy(header: bytes) -> _Remedy:
    """Return the fix for a header that cannot be read."""
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
