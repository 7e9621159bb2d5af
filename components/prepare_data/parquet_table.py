"""A Parquet file as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from components.prepare_data import values
from components.prepare_data.faults import BlockFaults
from components.prepare_data.options import DataOptions
from components.prepare_data.rows import Columns, Rows
from storage.errors import DataError, Problem

# pandas writes the index of what was filtered or shuffled as a column; it tells the order of rows.
_PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
_BATCH_VALUES = 1 << 20  # of a batch, so that wide rows come in small batches


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
        self._chosen = options.columns is not None
        with _undamaged(name):
            self._file = pa.parquet.ParquetFile(stream, pre_buffer=False)
        self._schema = self._file.schema_arrow
        self.names = list(self._schema.names)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return one problem for each feature that is none, and for a nested label."""
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
        size = max(1, _BATCH_VALUES // len(wanted))
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
        return pc.utf8_trim(column.cast(pa.string()), characters=values.BLANKS)
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
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
