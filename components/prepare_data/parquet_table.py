"""Reads a Parquet file as a table."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from kfp_tfjob.components.prepare_data import values
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.header import MOST_COLUMNS, too_many_columns
from kfp_tfjob.components.prepare_data.rows import Columns, Rows
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

# pandas writes the index of a filtered or shuffled table as a column; it reveals the row order.
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_BATCH_VALUES = 1 << 20  # per batch, so wide rows come in small batches
_READ_BYTES = 1 << 20  # of a column at a time; without it a whole column of a row group is read
_LONGEST_FOOTER = 64 << 20  # bytes
# Of one column in one row group, unpacked. Pages cannot be larger, and the files of common writers
# stay far below.
_LARGEST_NUMBERS, _LARGEST_TEXTS = 256 << 20, 64 << 20  # bytes


class ParquetTable:
    """A Parquet file.

    Args:
        stream: Its bytes, seekable.
        name: Name of the file, for messages.
        options: The typed `data_options`.
    """

    def __init__(self, stream: IO[bytes], name: str, options: DataOptions) -> None:
        self._name, self._stream = name, stream
        self._nulls = frozenset(options.null_values)
        self._chosen = options.columns is not None
        _check_footer(stream, name)
        with _undamaged(name):
            file = pa.parquet.ParquetFile(stream, pre_buffer=False)
            self._metadata = file.metadata
            if self._metadata.num_columns > MOST_COLUMNS:
                raise DataError(too_many_columns(name, self._metadata.num_columns))
            self._schema = file.schema_arrow
            self.names = list(self._schema.names)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return one problem for each column that cannot be a feature, and for a nested label."""
        found = []
        for name in columns.features:
            if _PANDAS_INDEX.fullmatch(name) and not self._chosen:
                found.append(
                    Problem(
                        f"column {name!r} of {self._name} is the index of a pandas table",
                        expected="columns that a model may learn from",
                        fix=f'leave it out with data_options.drop=["{name}"],'
                        " or write the file with index=False",
                    )
                )
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
                    f"the label {columns.label!r} of {self._name} has an unsupported type",
                    received=f"the type {kind}",
                    expected="text, integers, floats, decimals or booleans",
                    fix="write it as text or as numbers",
                )
            )
        return found or self._too_large(columns)

    def _too_large(self, columns: Columns) -> list[Problem]:
        """Return one problem for each column with too much data to unpack at once."""
        schema = self._metadata.schema
        wanted = {columns.label, *columns.features}
        where = {i: schema.column(i).path for i in range(len(schema))}
        largest: dict[str, int] = {}
        for group in range(self._metadata.num_row_groups):
            parts = self._metadata.row_group(group)
            for i, name in where.items():
                if name in wanted:
                    size = parts.column(i).total_uncompressed_size
                    largest[name] = max(largest.get(name, 0), size)
        found = []
        for name, size in largest.items():
            text = name == columns.label and not _numeric(self._schema.field(name).type)
            limit = _LARGEST_TEXTS if text else _LARGEST_NUMBERS
            if size > limit:
                found.append(
                    Problem(
                        f"column {name!r} of {self._name} has too many bytes in one row group",
                        received=f"{size / (1 << 20):,.0f} MiB unpacked",
                        expected=f"at most {limit >> 20} MiB",
                        fix="write the file with smaller row groups"
                        + (f", and labels of at most {values.LONGEST_LABEL:,} characters" * text),
                    )
                )
        return found

    def rows(self, columns: Columns) -> Iterator[Rows]:
        """Yield the rows batch by batch."""
        wanted = [*columns.features, columns.label]
        row = 1
        size = max(1, _BATCH_VALUES // len(wanted))
        text = _textual(self._schema.field(columns.label).type)
        with _undamaged(self._name):
            file = pa.parquet.ParquetFile(
                self._stream,
                metadata=self._metadata,
                # A text that occurs a million times is in memory once.
                read_dictionary=[columns.label] if text else None,
                buffer_size=_READ_BYTES,
                pre_buffer=False,
            )
            batches = file.iter_batches(size, columns=wanted, use_threads=False)
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
                label, wrong = _label_text(batch.column(columns.label))
            if wrong is not None:
                faults.mark(wrong, "encoding", columns.label, lambda i: "")
            texts, codes = values.labels(label, columns.label, self._nulls, faults)
            yield Rows.good(features, texts, codes, faults, batch.nbytes)


def _check_footer(stream: IO[bytes], name: str) -> None:
    """Refuse an index that may not fit in memory."""
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(end - 8, 0))
    length = int.from_bytes(stream.read(8)[:4], "little")
    stream.seek(0)
    if _LONGEST_FOOTER < length < end:
        raise DataError(
            Problem(
                f"the index of {name} is too large",
                received=f"{length / (1 << 20):,.0f} MiB",
                expected=f"at most {_LONGEST_FOOTER >> 20} MiB",
                fix="write the file with larger row groups or fewer columns",
            )
        )


@contextmanager
def _undamaged(name: str) -> Iterator[None]:
    """Turn pyarrow's errors about a broken Parquet file into a DataError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(
            Problem(
                f"{name} is damaged",
                received=f"{type(error).__name__}: {error!s:.500}",
                expected="a Parquet file that can be read to its end",
                fix="write the file again",
            )
        ) from error


def _floats(column: pa.Array, name: str, faults: BlockFaults) -> np.ndarray:
    """Return a numeric column as float32; nulls and values too large for float32 are faults."""
    absent = column.is_null().to_numpy(zero_copy_only=False)
    # Integers and decimals beyond 2**53 are rounded, as float32 rounds them anyway.
    exact = column.cast(pa.float64(), safe=False).fill_null(0)
    numbers = exact.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        result = numbers.astype(np.float32)
    faults.mark(absent, "missing", name, lambda i: "")
    faults.mark(~np.isfinite(result), "not finite", name, lambda i: str(numbers[i]))
    return np.where(np.isfinite(result), result, np.float32(0))


def _label_text(column: pa.Array) -> tuple[pa.DictionaryArray, np.ndarray | None]:
    """Return labels of any type as text: whole numbers without a point, NaN and null as missing.

    Returns:
        The texts, and bool of shape [rows]: the rows with a label that is not UTF-8, None if none.
    """
    if not isinstance(column.type, pa.DictionaryType):
        column = column.dictionary_encode()
    null = len(column.dictionary)
    indices = column.indices.cast(pa.int64()).fill_null(null).to_numpy(zero_copy_only=False)
    # The dictionary is shared by many batches.
    used, codes = np.unique(indices, return_inverse=True)
    found = column.dictionary.take(pa.array(np.where(used == null, None, used), pa.int64()))
    if _textual(found.type):
        texts, wrong = values.decode(found.cast(pa.large_binary()))
    else:
        texts, wrong = pa.array(list(map(_number_text, found.to_pylist())), pa.string()), None
    bad = wrong[codes] if wrong is not None and wrong.any() else None
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), texts), bad


def _number_text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    whole = abs(value) < 2**63 and value == int(value)
    return str(int(value)) if whole else str(value)


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
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
