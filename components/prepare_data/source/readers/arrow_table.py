"""Turns the arrow columns of any format into rows: what is a number, a label, a fault.

A reader of a format is a `Reader`: it opens one file and yields its columns in chunks. Called by
the readers of all formats.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import setting
from kfp_tfjob.features.cells import Cells, numeric, temporal, textual
from kfp_tfjob.features.null_values import are_null_numbers, null_numbers, rounded_nulls
from kfp_tfjob.options.data import NULL_VALUES, DataOptions

from ...faults import BlockFaults, images_as_files
from ..column_names import MOST_COLUMNS, Columns, Header, too_many_columns
from .byte_range import Span

# pandas writes the index of a filtered or shuffled table as a column; it reveals the row order.
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
CHUNK_VALUES = 1 << 20  # in a chunk, so wide rows come in small chunks
_LOOKED = 64  # rows in which a list shows its length
_EMPTY = pa.array([""])


@dataclass(frozen=True)
class NumberBlock:
    """Columns of a chunk without a missing or invalid value.

    Attributes:
        names: The columns.
        rows: float32 of shape [rows, columns], finite.
    """

    names: tuple[str, ...]
    rows: np.ndarray

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each column in a row."""
        return {name: j for j, name in enumerate(self.names)}


@dataclass(frozen=True)
class Images:
    """The images of a chunk, which stay objects of Python, because Arrow would copy them.

    Attributes:
        contents: The bytes of each file; empty if it is invalid.
        properties: PROPERTIES of shape [rows]; zeros if the file is invalid.
    """

    contents: list[bytes]
    properties: np.ndarray

    def of(self, mask: np.ndarray) -> Images:
        """Return the images of some rows, given bool of shape [rows]."""
        return Images([self.contents[row] for row in np.flatnonzero(mask)], self.properties[mask])


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file as columns.

    Attributes:
        columns: The array of each requested column. Strings of a file without types are binary.
        faults: The line where each row begins, and the rows that could not be split into values.
        size: The unpacked size in bytes.
        images: The images; None for tables.
        nulls: The strings that mean a missing value, including the empty string. In a file with
            types, other strings count only if the user sets `data_options.null_values`. Its default
            does not apply: a missing value is null there, and "NA" is Namibia.
    """

    columns: dict[str, pa.Array]
    faults: BlockFaults
    size: int
    nulls: pa.Array = field(default_factory=lambda: _EMPTY)
    images: Images | None = None
    _cells: dict[str, Cells] = field(default_factory=dict)

    def cells(self, name: str) -> Cells:
        """Return a column's values, always the same object."""
        if name not in self._cells:
            self._cells[name] = Cells(self.columns[name], self.nulls)
        return self._cells[name]

    @cached_property
    def numbers(self) -> NumberBlock:
        """The columns that are a number in every row: most tables have many of them."""
        numbers = {
            name: column
            for name, column in self.columns.items()
            if numeric(column.type)
            and not pa.types.is_boolean(column.type)
            and not column.null_count
        }
        rows = np.empty((len(self.faults.lines), len(numbers)), np.float32)
        with np.errstate(over="ignore"):
            for j, column in enumerate(numbers.values()):
                # Whole numbers and decimals beyond 2**53 are rounded, as float32 rounds them.
                exact = pa.types.is_floating(column.type)
                column = column if exact else column.cast(pa.float64(), safe=False)
                rows[:, j] = column.to_numpy(zero_copy_only=False)
        good = np.atleast_1d(np.isfinite(rows).all(axis=0))
        names = tuple(numbers)
        if not good.all():
            names = tuple(name for name, ok in zip(names, good, strict=True) if ok)
            rows = rows[:, good]
        return NumberBlock(names, rows)


class Reader(Protocol):
    """One open file of a format.

    Attributes:
        schema: The names of its columns, in the order of the file, and their types. The type of a
            column is binary if the file has text without types. Names may repeat.
        is_text: Whether it is opened with the text of the file as UTF-8, in which each line ends a
            record or is within one, so that a range of bytes can be read. Others get the bytes of
            the file, unpacked if it is packed with gzip or zstd.
        has_types: Whether its files distinguish strings, numbers and missing values.
        takes_names: Whether its files may lack names, so that `data_options.names` has them.
        has_sheets: Whether a file may have several tables, so that `data_options.sheet` names one.
        head: The first records of a file with lines, for messages.
        has_index: Whether the first column is unnamed and merely numbers or names the rows.
    """

    schema: pa.Schema
    is_text: ClassVar[bool] = False
    has_types: ClassVar[bool] = True
    takes_names: ClassVar[bool] = False
    has_sheets: ClassVar[bool] = False
    head: tuple[str, ...] = ()
    has_index: bool = False

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int, span: Span | None
    ) -> None:
        """Open a file, given the bytes of text to parse at a time, and the range to read."""

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file has the format, by the first 512 bytes of what is opened."""
        return False

    @staticmethod
    def units(stream: IO[bytes], name: str) -> list[int]:
        """Return the bytes of each unit that can be read alone, if a range is one of units."""
        return []

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns chunk by chunk; a reader of text parses features as numbers if it can.

        Args:
            columns: The columns.
            rows: The most rows of a chunk; a reader of text yields a block of the file.

        Raises:
            DataError: The file is damaged, or cannot be read within the memory of a step.
        """
        ...


class ArrowTable:
    """One open file as a table, in which each element of a list of numbers is a column.

    All lists of a column have the length of its type or, if they may have any, of the first one.

    Attributes:
        reader: The reader of its format.
        name: The file.
        names: The columns.
        null_values: The strings that mean a missing value, besides the empty one.

    Raises:
        DataError: It has too many columns, or a name that is not UTF-8.
    """

    def __init__(self, reader: Reader, name: str, options: DataOptions) -> None:
        self.reader, self.name = reader, name
        self._chosen = options.columns is not None
        self._null_numbers = null_numbers(options.null_values)
        self._nulls: pa.Array | None = None
        is_named = {*options.null_values} != {*NULL_VALUES}
        # In a file with types, "NA" is a string, unless the options say otherwise.
        self.null_values = () if reader.has_types and not is_named else tuple(options.null_values)
        if reader.has_types and is_named:
            self._nulls = pa.array(sorted({*options.null_values, ""}))
        with translate_read_errors(name):
            names = reader.schema.names
        repeated = Counter(names)
        # Columns with the same name are rejected, so they stay as they are.
        once = [item for item in reader.schema if repeated[item.name] == 1]
        self._lengths = {item.name: size for item in once if (size := self._length_of(item))}
        count = sum(self._lengths.get(item.name, 1) for item in reader.schema)
        if count > MOST_COLUMNS:  # a few bytes can claim any length
            raise DataError(too_many_columns(name, count))
        self.names: list[str] = []
        self._types: dict[str, pa.DataType] = {}
        self._elements: dict[str, tuple[str, int]] = {}  # of an element: its list and its index
        for item in reader.schema:
            names, kind = [item.name], item.type
            if length := self._lengths.get(item.name):
                names, kind = [f"{item.name}[{i}]" for i in range(length)], kind.value_type
                self._elements |= {names[i]: (item.name, i) for i in range(length)}
            self.names += names
            self._types |= dict.fromkeys(names, kind)

    def _length_of(self, field: pa.Field) -> int:
        """Return the elements that a list of numbers has in each row; 0 for any other column."""
        kind = field.type
        is_fixed = pa.types.is_fixed_size_list(kind)
        if not (is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return 0
        if not numeric(kind.value_type):
            return 0
        if is_fixed:
            return kind.list_size
        for chunk in self.reader.chunks(Columns((), field.name), rows=_LOOKED):
            lengths = pc.drop_null(pc.list_value_length(chunk.columns[field.name]))
            filled = lengths.filter(pc.greater(lengths, 0))
            return filled[0].as_py() if len(filled) else 0
        return 0

    @property
    def header(self) -> Header:
        """The file's columns, known before its rows are read."""
        return Header(self.names, self.reader.head, self.reader.has_index)

    @property
    def reached(self) -> tuple[int, int, int] | None:
        """For text: the offsets of the first byte and of the end of what was read, and its lines.

        No other format has ranges that begin within a row.
        """
        text: Any = self.reader
        return (text.reach.started, text.reach.position, text.lines) if text.is_text else None

    def problems(self, columns: Columns) -> list[Problem]:
        """Return one problem for each column that cannot be a feature, and for a nested label."""
        problems = []
        for name in columns.features:
            if _PANDAS_INDEX.fullmatch(name) and not self._chosen:
                problems.append(_pandas_index(name, self.name))
            if not _usable(self._types[name]):
                fix = f"drop it with {setting('data_options.drop', [name])}"
                if _has_bytes(self._types[name]):
                    fix = f"{images_as_files(name)}; otherwise, {fix}"
                problems.append(self._wrong_type(name, "a model cannot learn from", fix))
        for name in columns.extra:
            kind = self._types[name]
            if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
                fix = "name another column in data_options"
                problems.append(self._wrong_type(name, "can neither split nor weight rows", fix))
        kind = self._types[columns.label]
        if not (numeric(kind) or textual(kind) or pa.types.is_binary(kind)):
            problems.append(
                Problem(
                    f"the label {columns.label!r} of {self.name} has an unsupported type",
                    received=f"the type {kind!s:.200}",
                    expected="strings, integers, floats, decimals or booleans",
                    fix="write it as strings or numbers",
                )
            )
        return problems

    def _wrong_type(self, name: str, reason: str, fix: str) -> Problem:
        return Problem(
            f"column {name!r} of {self.name} has a type that {reason}",
            received=f"the type {self._types[name]!s:.200}",
            expected="numbers, booleans, strings, dates or timestamps",
            fix=f"{fix}, or write it as one of these",
        )

    def chunks(self, columns: Columns) -> Iterator[Chunk]:
        """Yield the columns chunk by chunk; a list of another length is a fault of its row."""
        stored = self._stored(columns)
        # A list is read as a whole, also if only some of its elements are wanted.
        values = sum(self._lengths.get(name, 1) for name in stored.all)
        for chunk in self.reader.chunks(stored, max(1, CHUNK_VALUES // values)):
            for name, column in chunk.columns.items():
                if name in self._lengths:
                    chunk.columns[name] = self._checked(name, column, chunk.faults)
                elif pa.types.is_null(
                    column.type
                ):  # only missing values in this file, maybe not in others
                    chunk.columns[name] = pa.nulls(len(column), pa.string())
                else:
                    chunk.columns[name] = _encodable(column)
            if stored is not columns:
                encodable = {name: self._column(name, chunk) for name in columns.all}
                chunk = replace(chunk, columns=encodable)
            if self._nulls is not None:
                chunk = replace(chunk, nulls=self._nulls)
            yield self._without_numbers(chunk) if len(self._null_numbers) else chunk

    def _without_numbers(self, chunk: Chunk) -> Chunk:
        """Return a chunk in which the numbers of `null_values` are missing, in any spelling."""
        nulls, columns = set(chunk.nulls.to_pylist()), dict(chunk.columns)
        for name, column in columns.items():
            kind = column.type
            values = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
            if numeric(kind) and not pa.types.is_boolean(kind):
                floats = column.cast(pa.float64(), safe=False)
                float_type = kind.to_pandas_dtype() if pa.types.is_floating(kind) else np.float64
                null_floats = pa.array(rounded_nulls(self._null_numbers, float_type))
                same = pc.is_in(floats, value_set=null_floats)
                columns[name] = pc.if_else(same, pa.scalar(None, kind), column)
            elif textual(kind) or pa.types.is_binary(values):
                texts = Cells(column.unique(), chunk.nulls).texts.drop_null()
                same = are_null_numbers(texts, self._null_numbers)
                nulls |= set(texts.filter(pa.array(same)).to_pylist())
        return replace(chunk, columns=columns, nulls=pa.array(sorted(nulls)))

    def _stored(self, columns: Columns) -> Columns:
        """Return the columns as they are in the file."""
        if self._elements.keys().isdisjoint(columns.all):
            return columns

        def stored(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(self._elements.get(name, (name,))[0] for name in names))

        (label,) = stored([columns.label])
        features, extra = stored(columns.features), stored(columns.extra)
        return replace(columns, features=features, label=label, extra=extra)

    def _column(self, name: str, chunk: Chunk) -> pa.Array:
        if name not in self._elements:
            return chunk.columns[name]
        stored, i = self._elements[name]
        return pc.list_element(chunk.columns[stored], i)

    def _checked(self, name: str, column: pa.Array, faults: BlockFaults) -> pa.Array:
        """Mark lists of another length, and return the column with nulls in their place."""
        if pa.types.is_fixed_size_list(column.type):
            return column
        lengths = pc.list_value_length(column).fill_null(self._lengths[name])
        wrong = pc.not_equal(lengths, self._lengths[name]).to_numpy(zero_copy_only=False)
        if not wrong.any():
            return column
        faults.mark(wrong, "list", name, lambda i: f"{lengths[i].as_py():,} elements")
        return column.take(pa.array(np.where(wrong, -1, np.arange(len(column))), mask=wrong))


def chunks_of(
    batch: pa.RecordBatch, names: Sequence[str], rows: int, file: str, row: int
) -> Iterator[Chunk]:
    """Yield columns of a record batch, at most `rows` rows at a time.

    Args:
        batch: The record batch.
        names: The columns.
        rows: The most rows of a chunk.
        file: The file's name.
        row: The number of the batch's first row in the file, from 1.
    """
    for start in range(0, batch.num_rows, rows):
        part = batch.select(names).slice(start, rows)
        lines = np.arange(row + start, row + start + part.num_rows)
        values = dict(zip(names, part.columns, strict=True))
        yield Chunk(values, BlockFaults(file, lines), part.nbytes)


@contextmanager
def translate_read_errors(
    name: str,
    expected: str = "a file that can be read to its end",
    errors: tuple[type[Exception], ...] = (pa.ArrowException, OSError, UnicodeDecodeError),
) -> Iterator[None]:
    """Turn a library's errors about a broken file into a DataError.

    Only a call of the library belongs inside: an error of our own code is no damage.

    Args:
        name: The file.
        expected: What the library reads.
        errors: What it raises about a file; pyarrow's by default.

    Raises:
        DataError: The file is damaged.
        MemoryError: The library needs more memory; it names the file.
    """
    try:
        yield
    except MemoryError as error:  # Arrow's is also an ArrowException
        raise MemoryError(f"{error} for reading {name}") from error
    except errors as error:
        raise DataError(
            Problem(
                f"{name} is damaged",
                received=f"{type(error).__name__}: {error!s:.500}",
                expected=expected,
                fix="write the file again",
            )
        ) from error


def _usable(kind: pa.DataType) -> bool:
    """Return whether a column of a type may be a feature."""
    is_value = numeric(kind) or temporal(kind) or textual(kind)
    return is_value or pa.types.is_binary(kind) or pa.types.is_null(kind)


def _has_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is a struct with bytes, as Hugging Face's datasets store images."""
    return pa.types.is_struct(kind) and any(
        pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type) for field in kind
    )


def _encodable(column: pa.Array) -> pa.Array:
    """Return values of types that Arrow cannot take or encode in one that it can.

    Polars writes strings as views, and some programs small decimals in 32 or 64 bits.
    """
    kind = column.type
    if isinstance(column, pa.DictionaryArray) and pa.types.is_string_view(kind.value_type):
        texts = column.dictionary.cast(pa.string())
        return pa.DictionaryArray.from_arrays(column.indices, texts)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.string() if pa.types.is_string_view(kind) else pa.binary())
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column


def _pandas_index(name: str, file: str) -> Problem:
    return Problem(
        f"column {name!r} of {file} is the index of a pandas table",
        expected="columns that a model may learn from",
        fix=f"drop it with {setting('data_options.drop', [name])}, or write the file with"
        " index=False",
    )
