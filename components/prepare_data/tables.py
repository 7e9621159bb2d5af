"""A CSV or a Parquet file as one thing: its column names, and its rows block by block."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from components.prepare_data import values
from components.prepare_data.csv_records import BLOCK, Block, Records
from components.prepare_data.faults import BlockFaults
from components.prepare_data.files import Source, SourceFile, text_of
from components.prepare_data.options import DataOptions
from storage.errors import DataError, Problem

_PARQUET_CELLS = 1 << 20  # values of a batch, so that wide rows come in small batches


@dataclass(frozen=True)
class Columns:
    """What is taken from a file.

    Attributes:
        features: Names, in the order in which the model gets them.
        label: Name.
    """

    features: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Rows:
    """The good rows of one block.

    Attributes:
        features: float32 of shape [rows, features], finite.
        labels: The distinct labels of the block, as text.
        codes: int32 of shape [rows], indices of `labels`.
        lines: int64 of shape [rows], the line in which each begins.
        faults: The rows that are not here.
        size: Bytes the block takes unpacked.
    """

    features: np.ndarray
    labels: list[str]
    codes: np.ndarray
    lines: np.ndarray
    faults: BlockFaults
    size: int

    @classmethod
    def good(
        cls,
        features: np.ndarray,
        labels: list[str],
        codes: np.ndarray,
        faults: BlockFaults,
        size: int,
    ) -> Rows:
        """Return the rows in which no fault was marked."""
        keep = faults.good
        if keep.all():
            return cls(features, labels, codes, faults.lines, faults, size)
        return cls(features[keep], labels, codes[keep], faults.lines[keep], faults, size)


class Table(Protocol):
    """One open file."""

    names: list[str]

    def problems(self, columns: Columns) -> list[Problem]:
        """Return what is wrong with the types of the columns."""

    def rows(self, columns: Columns) -> Iterator[Rows]:
        """Yield the rows block by block."""


@contextmanager
def open_table(
    source: Source, file: SourceFile, options: DataOptions, block: int = BLOCK
) -> Iterator[Table]:
    """Open one file of the source.

    Args:
        source: The source.
        file: Which file.
        options: How it is written.
        block: Bytes of a CSV to parse at a time.

    Raises:
        DataError: It is empty, damaged or of another format.
    """
    if not file.size:
        raise _empty(file.name)
    if source.format_of(file, options.format) == "csv":
        with text_of(source, file) as stream:
            yield CsvTable(stream, file.name, options, block)
        return
    with source.raw(file) as stream:
        yield ParquetTable(stream, file.name, options)


class CsvTable:
    """A CSV with a header.

    Args:
        stream: Its bytes.
        name: Name of the file, for messages.
        options: How it is written.
        block: Bytes to parse at a time.
    """

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int = BLOCK
    ) -> None:
        self._name, self._options = name, options
        self._blocks = iter(Records(stream, name, options.delimiter, block))
        self._first = self._take_header()
        self._nulls = frozenset(options.null_values)
        # A number that means "missing" is seen only where values are still text.
        self._direct = not any(map(values.plain_number, options.null_values))

    def _take_header(self) -> Block:
        block = next(self._blocks, None)
        while block and not len(block.lines) and not block.bad:
            block = next(self._blocks, None)
        if block is None:
            raise _empty(self._name)
        lost = block.bad and (not len(block.lines) or block.bad[0][0] < block.lines[0])
        header, rest = (b"", b"") if lost else _first_record(block.data, self._options.delimiter)
        try:
            text = header.decode()
            if lost or "\r" in text.rstrip("\r\n"):
                raise ValueError("quotes or line ends that do not belong there")
            reader = csv.reader([text], delimiter=self._options.delimiter, strict=True)
            self.names = [name.strip() for name in next(reader)]
        except (ValueError, csv.Error) as error:
            received = block.bad[0][1] if lost else header.decode(errors="replace")
            raise DataError(
                Problem(
                    f"{self._name}: the header cannot be read ({error})",
                    received=repr(received[:200]),
                    expected="the names of the columns on the first line, in UTF-8",
                    fix="write the file as CSV in UTF-8, with one row on each line",
                )
            ) from error
        return Block(rest, block.lines[1:], block.bad)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return nothing: in a CSV a type is a matter of each row."""
        return []

    def rows(self, columns: Columns) -> Iterator[Rows]:
        """Yield the rows block by block."""
        yield self._parse(self._first, columns)
        for block in self._blocks:
            yield self._parse(block, columns)

    def _parse(self, block: Block, columns: Columns) -> Rows:
        at = [self.names.index(name) for name in columns.features]
        label_at = self.names.index(columns.label)
        parsed = self._as_numbers(block, at, label_at) or self._as_text(
            block, columns, at, label_at
        )
        features, label, faults = parsed
        for line, text in block.bad:
            faults.lost(line, "quotes", text)
        label = values.strings(label, columns.label, faults)
        texts, codes = values.labels(label, columns.label, self._nulls, faults)
        return Rows.good(features, texts, codes, faults, len(block.data))

    def _as_numbers(
        self, block: Block, at: list[int], label_at: int
    ) -> tuple[np.ndarray, pa.Array, BlockFaults] | None:
        """Parse a block without a fault, fast; None when there is one among the features."""
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
        nulls = pa.array(sorted(self._nulls | {""}))
        features = np.empty((table.num_rows, len(at)), np.float32)
        for j, (i, name) in enumerate(zip(at, columns.features, strict=True)):
            text = values.strings(_one(table[str(i)]), name, faults)
            features[:, j] = values.numbers(text, name, nulls, faults)
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


class ParquetTable:
    """A Parquet file.

    Args:
        stream: Its bytes, seekable.
        name: Name of the file, for messages.
        options: How rows are read.
    """

    def __init__(self, stream: IO[bytes], name: str, options: DataOptions) -> None:
        self._name = name
        self._nulls = frozenset(options.null_values)
        with _undamaged(name):
            self._file = pa.parquet.ParquetFile(stream, pre_buffer=False)
        self._schema = self._file.schema_arrow
        self.names = list(self._schema.names)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return one problem for each feature that is not numeric and for a nested label."""
        found = []
        for name in columns.features:
            kind = self._schema.field(name).type
            if not _numeric(kind):
                found.append(
                    Problem(
                        f"column {name!r} of {self._name} is not numeric",
                        received=f"the type {kind}",
                        expected="integers, floats, decimals or booleans",
                        fix=f'leave it out with data_options.drop=["{name}"],'
                        " or write it as numbers",
                    )
                )
        kind = self._schema.field(columns.label).type
        if not (_numeric(kind) or _textual(kind)):
            found.append(
                Problem(
                    f"the label {columns.label!r} of {self._name} has a type no label can have",
                    received=f"the type {kind}",
                    expected="text, integers, floats, decimals or booleans",
                    fix="write it as text or as numbers",
                )
            )
        return found

    def rows(self, columns: Columns) -> Iterator[Rows]:
        """Yield the rows batch by batch."""
        wanted = [*columns.features, columns.label]
        row = 1
        size = max(1, _PARQUET_CELLS // len(wanted))
        with _undamaged(self._name):
            batches = self._file.iter_batches(size, columns=wanted)
        while True:
            with _undamaged(self._name):
                batch = next(batches, None)
            if batch is None:
                return
            lines = np.arange(row, row + batch.num_rows)
            row += batch.num_rows
            faults = BlockFaults(self._name, lines)
            features = np.empty((batch.num_rows, len(columns.features)), np.float32)
            for j, name in enumerate(columns.features):
                features[:, j] = _floats(batch.column(name), name, faults)
            label = _label_text(batch.column(columns.label))
            texts, codes = values.labels(label, columns.label, self._nulls, faults)
            yield Rows.good(features, texts, codes, faults, batch.nbytes)


@contextmanager
def _undamaged(name: str) -> Iterator[None]:
    """Turn what pyarrow says about a broken Parquet file into an error of ours."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            Problem(
                f"{name} is damaged",
                received=str(error),
                expected="a Parquet file that can be read to its end",
                fix="write the file again",
            )
        ) from error


def _floats(column: pa.Array, name: str, faults: BlockFaults) -> np.ndarray:
    """Return a numeric column as float32; null and what float32 cannot hold are faults."""
    absent = column.is_null().to_numpy(zero_copy_only=False)
    # Integers and decimals beyond 2**53 are rounded, as float32 rounds them anyway.
    exact = column.cast(pa.float64(), safe=False).fill_null(0)
    numbers = exact.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        result = numbers.astype(np.float32)
    faults.mark(absent, "missing", name, lambda i: "")
    faults.mark(~np.isfinite(result), "not finite", name, lambda i: str(numbers[i]))
    return np.where(np.isfinite(result), result, np.float32(0))


def _label_text(column: pa.Array) -> pa.Array:
    """Return labels of any type as text: whole numbers without a point, NaN as missing."""
    if isinstance(column.type, pa.DictionaryType):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type) or _textual(column.type):
        return pa.compute.utf8_trim(column.cast(pa.string()), characters=values.BLANKS)
    distinct = column.dictionary_encode()
    texts = []
    for value in distinct.dictionary.to_pylist():
        whole = value == value and abs(value) < 2**63 and value == int(value)
        texts.append("" if value != value else str(int(value)) if whole else str(value))
    return pa.DictionaryArray.from_arrays(
        distinct.indices, pa.array(texts, pa.string())
    ).dictionary_decode()


def _numeric(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


def _textual(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.DictionaryType):
        return _textual(kind.value_type) or _numeric(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


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


def _empty(name: str) -> DataError:
    return DataError(
        Problem(
            f"{name} is empty",
            expected="a header with the names of the columns, and rows",
            fix="correct data_uri, or write the file again",
        )
    )
