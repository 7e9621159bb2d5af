"""Reads a CSV as arrow columns: parses blocks as numbers, and as text if that fails."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
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
    Content,
    FileFormat,
    Reader,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import ByteRange, Span, begin
from kfp_tfjob.components.prepare_data.source.readers.csv_records import (
    BLOCK,
    LONGEST_RECORD,
    Block,
    CsvRecords,
)
from kfp_tfjob.features.cells import shown
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

_REPEATED = pa.dictionary(pa.int32(), pa.binary())
_HEADER_BLOCK = 1 << 16  # bytes; what is read again of each range of a file


class CsvTable(Reader):
    """A CSV with a header.

    Args:
        stream: Its bytes.
        name: Name of the file, for messages.
        options: The typed `data_options`.
        block: Bytes to parse at a time.
        span: The range to read besides the header; None for the whole file.
    """

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

    def _take_header(self) -> Block:
        looked, block = 0, next(self._blocks, None)
        while block and not len(block.lines) and not block.bad and looked < LONGEST_RECORD:
            looked += len(block.data)
            block = next(self._blocks, None)
        if block is None or looked >= LONGEST_RECORD:
            raise empty(self._name)
        lost = block.bad and (not len(block.lines) or block.bad[0][0] < block.lines[0])
        header, rest = (b"", b"") if lost else _first_record(block.data, self._options.delimiter)
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
            received = block.bad[0][1] if lost else header.decode(errors="replace")
            raise DataError(
                Problem(
                    f"{self._name}: the header cannot be read ({error})",
                    received=repr(received[:200]),
                    expected="the names of the columns on the first line, in UTF-8",
                    fix=_header_fix(header),
                )
            ) from error
        return Block(rest, block.lines[1:], block.bad, block.lost)

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
        for line, text in block.bad:
            chunk.faults.lost(line, "quotes", text)
        chunk.faults.rows["quotes"] += block.lost - len(block.bad)
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
        """Return the types of columns of text: binary, or a dictionary where texts may repeat."""
        repeated = columns.texts - {columns.label, *columns.extra}
        return {str(i): _REPEATED if name in repeated else pa.binary() for name, i in at.items()}

    def _as_text(self, block: Block, at: dict[str, int], columns: Columns) -> Chunk:
        """Split a block into values, and mark the rows that cannot be split."""
        size = len(block.data)
        block, undecodable = self._records.wrong_bytes(block, len(self.schema))
        lost: list[tuple[int, str]] = []

        def skip(row: arrow_csv.InvalidRow) -> str:
            lost.append((row.number - 1, row.text))
            return "skip"

        has_nul = b"\0" in block.data
        types = {str(i): pa.binary() for i in at.values()} if has_nul else self._types(at, columns)
        table = self._read(block, types, skip)
        keep = np.ones(len(block.lines), bool)
        keep[[index for index, _ in lost]] = False
        faults = BlockFaults(self._name, block.lines[keep])
        for index, text in lost:
            faults.lost(int(block.lines[index]), "columns", text)
        for line, text in undecodable:
            faults.lost(line, "columns", text)
        found = {name: _one(table[str(i)]) for name, i in at.items()}
        if has_nul:
            for name, column in found.items():
                hit = pc.find_substring(column, b"\0").to_numpy(zero_copy_only=False) >= 0
                faults.mark(hit, "nul", name, lambda i, column=column: shown(column, i))
        return Chunk(found, faults, size, self._nulls)

    def _read(
        self,
        block: Block,
        types: dict[str, pa.DataType],
        skip: Callable[[arrow_csv.InvalidRow], str] | None = None,
        nulls: bool = False,
    ) -> pa.Table:
        names = [str(i) for i in range(len(self.schema))]
        if not len(block.lines):
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        lost = 0

        def count(row: arrow_csv.InvalidRow) -> str:
            nonlocal lost
            lost += 1
            return skip(row) if skip else "skip"

        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(
                use_threads=False, column_names=names, block_size=len(block.data) + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=self._options.delimiter,
                newlines_in_values=True,
                invalid_row_handler=count if skip else None,
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=self._nulls.to_pylist() if nulls else [],
                strings_can_be_null=False,
            ),
        )
        if table.num_rows + lost != len(block.lines):
            raise RuntimeError(
                f"{self._name}: {len(block.lines)} records from line {block.lines[0]} on were"
                f" parsed as {table.num_rows + lost} rows"
            )
        return table


def _header_fix(header: bytes) -> str:
    if b"\0" in header:  # every second byte, if the text is English
        wide = "utf-16-be" if header.startswith(b"\0") else "utf-16-le"
        return f"set data_options.encoding={wide} if the file is UTF-16, or write it as UTF-8"
    try:
        header.decode()
    except UnicodeDecodeError:
        return "set data_options.encoding, for instance latin-1, or write the file as UTF-8"
    return (
        "correct data_options.delimiter, or write the file as CSV in UTF-8 with one row on each"
        " line"
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _first_record(data: bytes, delimiter: str) -> tuple[bytes, bytes]:
    """Return the first record that is not empty, and what follows it."""
    start = 0
    while True:
        end = data.index(b"\n", start) + 1
        while data.count(b'"', start, end) % 2 and end < len(data):
            end = data.index(b"\n", end) + 1
        if data[start:end].strip(b"\r\n"):
            return data[start:end], data[end:]
        start = end


FORMAT = FileFormat(lambda head: True, CsvTable, Content.TEXT, has_lines=True)  # any other text
