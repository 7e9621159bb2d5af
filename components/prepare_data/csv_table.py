"""Reads a CSV as a table: parses blocks as numbers, and value by value if that fails."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from kfp_tfjob.components.prepare_data import values
from kfp_tfjob.components.prepare_data.csv_records import BLOCK, LONGEST_RECORD, Block, CsvRecords
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.header import MOST_COLUMNS, too_many_columns
from kfp_tfjob.components.prepare_data.rows import Columns, Rows, empty
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem


class CsvTable:
    """A CSV with a header.

    Args:
        stream: Its bytes.
        name: Name of the file, for messages.
        options: The typed `data_options`.
        block: Bytes to parse at a time.
    """

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int = BLOCK
    ) -> None:
        self._name, self._options = name, options
        self._records = CsvRecords(stream, name, options.delimiter, block)
        self._blocks = iter(self._records)
        self._first = self._take_header()
        self._nulls = frozenset(options.null_values)
        # A number that means "missing" can be found only while the values are text.
        self._direct = not any(map(values.plain_number, options.null_values))

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
            reader = csv.reader([text], delimiter=self._options.delimiter, strict=True)
            self.names = [name.strip() for name in next(reader)]
        except (ValueError, csv.Error) as error:
            received = block.bad[0][1] if lost else header.decode(errors="replace")
            raise DataError(
                Problem(
                    f"{self._name}: the header cannot be read ({error})",
                    received=repr(received[:200]),
                    expected="the names of the columns on the first line, in UTF-8",
                    fix="correct data_options.delimiter, or write the file as CSV in UTF-8 with one"
                    " row on each line",
                )
            ) from error
        return Block(rest, block.lines[1:], block.bad, block.lost)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return nothing: the columns of a CSV have no types."""
        return []

    def rows(self, columns: Columns) -> Iterator[Rows]:
        """Yield the rows block by block."""
        yield self._parse(self._first, columns)
        for block in self._blocks:
            yield self._parse(block, columns)

    def _parse(self, block: Block, columns: Columns) -> Rows:
        where = {name: i for i, name in enumerate(self.names)}
        at = [where[name] for name in columns.features]
        label_at = where[columns.label]
        parsed = self._as_numbers(block, at, label_at) or self._as_text(
            block, columns, at, label_at
        )
        features, label, faults = parsed
        for line, text in block.bad:
            faults.lost(line, "quotes", text)
        faults.rows["quotes"] += block.lost - len(block.bad)
        label = values.strings(label, columns.label, faults)
        texts, codes = values.labels(label, columns.label, self._nulls, faults)
        return Rows.good(features, texts, codes, faults, len(block.data))

    def _as_numbers(
        self, block: Block, at: list[int], label_at: int
    ) -> tuple[np.ndarray, pa.Array, BlockFaults] | None:
        """Parse a block fast; None if a feature has a fault."""
        if not self._direct:
            return None
        types = {str(i): pa.float32() for i in at} | {str(label_at): pa.binary()}
        try:
            table = self._read(block, types)
        except pa.ArrowInvalid:
            return None
        features = _matrix([table[str(i)] for i in at], len(block.lines))
        if not np.isfinite(features).all():
            return None
        return features, _one(table[str(label_at)]), BlockFaults(self._name, block.lines)

    def _as_text(
        self, block: Block, columns: Columns, at: list[int], label_at: int
    ) -> tuple[np.ndarray, pa.Array, BlockFaults]:
        """Parse a block value by value and mark every fault in it."""
        block, undecodable = self._records.wrong_bytes(block, len(self.names))
        lost: list[tuple[int, str]] = []

        def skip(row: pa.csv.InvalidRow) -> str:
            lost.append((row.number - 1, row.text))
            return "skip"

        table = self._read(block, {str(i): pa.binary() for i in [*at, label_at]}, skip)
        keep = np.ones(len(block.lines), bool)
        keep[[index for index, _ in lost]] = False
        faults = BlockFaults(self._name, block.lines[keep])
        for index, text in lost:
            faults.lost(int(block.lines[index]), "columns", text)
        for line, text in undecodable:
            faults.lost(line, "columns", text)
        rows = table.num_rows
        # One array for all columns: with many columns of few rows, the calls would cost the most.
        flat = pa.concat_arrays([_one(table[str(i)]) for i in at])
        text, wrong = values.decode(flat)
        numbers, found = values.numbers(text, pa.array(sorted(self._nulls | {""})))
        found = {"encoding": wrong, **found}
        bad = np.any(list(found.values()), axis=0).reshape(len(at), rows).any(axis=1)
        for j in np.flatnonzero(bad).tolist():
            start = j * rows
            for rule, mask in found.items():
                faults.mark(
                    mask[start : start + rows],
                    rule,
                    columns.features[j],
                    lambda i, start=start: values.shown(flat[start + i]),
                )
        features = np.ascontiguousarray(numbers.reshape(len(at), rows).T)
        return features, _one(table[str(label_at)]), faults

    def _read(self, block: Block, types: dict[str, pa.DataType], skip: object = None) -> pa.Table:
        names = [str(i) for i in range(len(self.names))]
        if not len(block.lines):
            return pa.table({name: pa.array([], kind) for name, kind in types.items()})
        lost = 0

        def count(row: pa.csv.InvalidRow) -> str:
            nonlocal lost
            lost += 1
            return skip(row)

        table = pa.csv.read_csv(
            pa.BufferReader(block.data),
            pa.csv.ReadOptions(
                use_threads=False, column_names=names, block_size=len(block.data) + 1
            ),
            pa.csv.ParseOptions(
                delimiter=self._options.delimiter,
                newlines_in_values=True,
                invalid_row_handler=count if skip else None,
            ),
            pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        if table.num_rows + lost != len(block.lines):
            raise RuntimeError(
                f"{self._name}: {len(block.lines)} records from line {block.lines[0]} on were"
                f" parsed as {table.num_rows + lost} rows"
            )
        return table


def _matrix(columns: list[pa.ChunkedArray], rows: int) -> np.ndarray:
    result = np.empty((rows, len(columns)), np.float32)
    for j, column in enumerate(columns):
        result[:, j] = column.to_numpy()
    return result


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
