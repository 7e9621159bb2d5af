"""Writes the rows of a shard as Parquet, with the values and the types of the table.

Any tool reads such a file: pandas, DuckDB, Spark, or a user's own program.

- An image is the bytes of its file.
- A number is a float64, or a float32 in a table of plain numbers, in which the model takes them as
  they are. A boolean is a bool, a date a timestamp in UTC, and any other value a string. null is
  a missing value.
- The label has its own name. It is the name of a class, as in schema.json, or a float64.
- The weight is a float32, and has its own name, too.
- If the split is by group, test rows have the hash of their group as a uint64, because evaluate
  needs to know which rows are alike. schema.json names the column.

Images are not compressed again, and are written without statistics, which would repeat them. A row
group has about 16 MiB of values, so a reader has few images in memory.

Equal rows give equal bytes, however the source was divided: a row group begins after a number of
bytes that depends on the rows alone, and its strings are in alphabetical order in the dictionary.

Called by shards.py.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kfp_tfjob.features.cells import as_array, sorted_strings
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.string_hashes import string_hashes
from kfp_tfjob.features.types.base import CODES, CONTENTS, NO_DATE

from .buckets import Sorted
from .hashes import row_hashes
from .labels import Label
from .row_weights import weights_of

# Of a row group, before it is compressed: what a reader has in memory at a time.
_GROUP_BYTES = 16 << 20


class ParquetShard:
    """One file, to which rows are added in the order of the dataset.

    Args:
        path: The file.
        coding: The features; only their names and types count.
        label: The label, with its classes.
        kind: The type of a row.
        weight: The column of the weights; empty without weights.
        group: The column of the groups' hashes; empty without it.
    """

    def __init__(
        self,
        path: Path,
        coding: Coding,
        label: Label,
        kind: np.dtype,
        weight: str = "",
        group: str = "",
    ) -> None:
        self._coding, self._label, self._weight, self._group = coding, label, weight, group
        no_images = pa.chunked_array([], pa.large_binary())
        none = self._table(
            Sorted(np.empty(0, kind), np.empty(0, np.int32), self._no_strings(), no_images)
        )
        # pyarrow's types lack that they may be lists.
        strings: Any = [field.name for field in none.schema if pa.types.is_dictionary(field.type)]
        plain: Any = [field.name for field in none.schema if field.type != no_images.type]
        has_images = len(plain) < len(none.schema)
        compressions: Any = {field.name: "zstd" for field in none.schema}
        compressions |= {name: "none" for name in compressions if name not in plain}
        self._writer = pq.ParquetWriter(
            path,
            none.schema,
            compression=compressions if has_images else "zstd",
            write_statistics=plain if has_images else True,
            # A dictionary of floats takes five times as long, and saves nothing.
            use_dictionary=strings,
            # Without Arrow's own schema, tools read strings as strings rather than as categories.
            store_schema=False,
        )
        self._waiting: list[pa.Table] = []
        self._content_words: list[np.ndarray] = []
        self._bytes = 0
        self._digest = blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The hash of the values of all rows in their order, which other bytes of a file share."""
        return self._digest.hexdigest()

    def add(self, rows: Sorted) -> None:
        """Add rows."""
        self._waiting.append(self._table(rows))
        self._bytes += rows.rows.nbytes + sum(map(_string_bytes, rows.strings))
        if rows.images is not None:
            self._content_words.append(rows.rows["content"])
            self._bytes += rows.images.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, and end the file."""
        self._flush()
        self._writer.close()

    def _table(self, rows: Sorted) -> pa.Table:
        strings, columns = iter(rows.strings), {}
        for feature, (field, place) in zip(self._coding.features, self._coding.places, strict=True):
            if field == CODES:
                columns[feature.name] = next(strings)
            elif field == CONTENTS:
                columns[feature.name] = rows.images
            else:
                columns[feature.name] = feature.to_arrow(rows.rows[field.name][:, place])
        if self._weight:
            columns[self._weight] = pa.array(weights_of(rows.rows))
        classes = self._label.classes
        columns[self._label.name] = (
            pa.array(np.ascontiguousarray(rows.rows["number"]))
            if classes is None
            else pa.DictionaryArray.from_arrays(
                pa.array(rows.labels.astype(np.int32)), pa.array(classes, pa.string())
            )
        )
        if self._group:
            columns[self._group] = pa.array(np.ascontiguousarray(rows.rows["group"]))
        return pa.table(columns)

    def _no_strings(self) -> tuple[pa.DictionaryArray, ...]:
        empty = pa.array([], pa.string()).dictionary_encode()
        return (empty,) * sum(field == CODES for field, _ in self._coding.places)

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).unify_dictionaries()
            # Not column by column with set_column, which copies the list of all columns.
            columns = list(map(_written_column, table.columns))
            table = pa.Table.from_arrays(columns, schema=table.schema)
            self._writer.write_table(table, row_group_size=len(table))
            words = map(self._words, table.columns)
            self._digest.update(row_hashes(words, len(table), "").tobytes())
        self._waiting, self._content_words, self._bytes = [], [], 0

    def _words(self, column: pa.ChunkedArray) -> np.ndarray:
        """Return 64 bits for each value of a column: uint64 of shape [rows]."""
        if column.type == pa.large_binary():
            return np.concatenate(self._content_words)
        return _words(column.chunk(0))


def _written_column(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column as it is written: in one chunk, and a dictionary in the order of its rows."""
    if column.type == pa.large_binary():
        return column  # its chunks are not copied
    array = as_array(column)
    return _sorted_dictionary(array) if isinstance(array, pa.DictionaryArray) else array


def _words(column: pa.Array) -> np.ndarray:
    """Return 64 bits for each value of a column: uint64 of shape [rows]."""
    if pa.types.is_string(column.type):  # a type that stores its numbers as text, as a geo point
        column = column.dictionary_encode()
    if isinstance(column, pa.DictionaryArray):
        hashes = string_hashes(column.dictionary.to_pylist())
        codes = column.indices.fill_null(len(hashes)).to_numpy()
        return np.append(hashes, np.uint64(0))[codes]
    if pa.types.is_floating(column.type):
        numbers = column.fill_null(np.nan).to_numpy(zero_copy_only=False)
        return numbers.astype(np.float64).view(np.uint64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    missing = 2 if pa.types.is_integer(column.type) else NO_DATE
    integers = column.cast(pa.int64(), safe=False).fill_null(missing)
    return integers.to_numpy(zero_copy_only=False).view(np.uint64)


def _string_bytes(column: pa.DictionaryArray) -> int:
    """Return a string column's bytes, with each string counted as often as it occurs."""
    lengths = pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False)
    codes = column.indices.drop_null().to_numpy(zero_copy_only=False)
    return int(lengths[codes].sum(dtype=np.int64))


def _sorted_dictionary(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the same strings with those that occur as its dictionary, in alphabetical order."""
    codes, strings = sorted_strings(column)
    indices = pa.array(codes, mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, strings, safe=False)
