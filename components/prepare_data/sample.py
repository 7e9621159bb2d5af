"""Reads some rows of a finished dataset back, to compare datasets and to look for leaks.

The rows of a split are in the order of their hashes, so its first rows are a random sample. It is
the same in each run, no matter which process wrote the shards. Called by the validation of the
dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.cells import Cells, Texts, as_array
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import CODES, ColumnType
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.stream import ObjectStream

MOST_ROWS = 50_000
_MOST_BYTES = 32 << 20
_NO_NULLS = pa.array([], pa.string())  # a missing value is null in Parquet


@dataclass(frozen=True)
class Sample:
    """Rows of one split as the model gets them, and their class indices or numbers.

    Attributes:
        rows: The fields `features` (float32), `codes` and `dates` of shape [rows, columns].
        labels: Of shape [rows].
    """

    rows: np.ndarray
    labels: np.ndarray


def read(
    store: Store, base: S3Address, schema: Schema, split: str, most: int = MOST_ROWS
) -> Sample:
    """Return the first rows of a table's split; `table_of` describes the arguments and errors."""
    return encoded(table_of(store, base, schema, split, most), schema)


def table_of(
    store: Store, base: S3Address, schema: Schema, split: str, most: int = MOST_ROWS
) -> pa.Table:
    """Return the first rows of a split of a table, `most` or 32 MiB of them.

    Raises:
        ObjectNotFoundError: A shard is not there.
        DataError: A shard is damaged, or lacks a column.
    """
    most = max(1, min(most, _MOST_BYTES // _row_type(schema).itemsize))
    groups: list[pa.Table] = []
    for name in schema.splits[split].shards:
        if (missing := most - sum(map(len, groups))) > 0:
            groups += _first_groups(store, base, name, [*schema.names, schema.label.name], missing)
    return pa.concat_tables(groups).slice(0, most).unify_dictionaries().combine_chunks()


def encoded(
    table: pa.Table, schema: Schema, learned: Mapping[str, ColumnType] = MappingProxyType({})
) -> Sample:
    """Return rows of `table_of` as the model gets them.

    Args:
        table: The rows.
        schema: The schema of their dataset.
        learned: The encoding of another dataset to use, by column.
    """
    coding = schema.encoding
    rows = np.zeros(len(table), _row_type(schema))
    for feature, (field, place) in zip(coding.features, coding.places, strict=True):
        encoding = learned.get(feature.name, feature)
        rows[field.name][:, place] = _values(encoding, as_array(table[feature.name]))
    rows["features"] += np.float32(0)  # -0.0 is 0.0
    return Sample(rows, _labels(schema, as_array(table[schema.label.name])))


def _row_type(schema: Schema) -> np.dtype:
    floats, codes, dates = schema.encoding.lengths
    return np.dtype(
        [("features", "<f4", (floats,)), ("codes", "<i4", (codes,)), ("dates", "<i8", (dates,))]
    )


def _first_groups(
    store: Store, base: S3Address, name: str, columns: list[str], rows: int
) -> list[pa.Table]:
    """Return the first row groups of a shard, until they have so many rows."""
    head = store.head(base / name)
    stream = ObjectStream.buffered(
        store, base / name, head["ContentLength"], head["ETag"].strip('"')
    )
    groups: list[pa.Table] = []
    with stream:
        try:
            metadata = pq.read_metadata(stream)
            schema = metadata.schema.to_arrow_schema()
            strings = [item.name for item in schema if pa.types.is_string(item.type)]
            file = pq.ParquetFile(stream, metadata=metadata, read_dictionary=strings)
            if missing := set(columns).difference(schema.names):
                raise _mismatch(base, name, f"no column {min(missing)!r}")
            for group in range(metadata.num_row_groups):
                if sum(map(len, groups)) < rows and sum(map(_text_bytes, groups)) < _MOST_BYTES:
                    groups.append(file.read_row_group(group, columns, use_threads=False))
        except pa.ArrowException as error:
            raise _mismatch(base, name, f"{type(error).__name__}: {error}"[:500]) from error
    return groups


def _text_bytes(table: pa.Table) -> int:
    """Return the bytes of a table's distinct strings, which may be long texts."""
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return sum(chunk.dictionary.nbytes for chunk in chunks if isinstance(chunk, pa.DictionaryArray))


def _values(feature: ColumnType, column: pa.Array) -> np.ndarray:
    """Return a column as the rows of prepare_data have it, of shape [rows]."""
    values = feature.parse(Cells(column, _NO_NULLS)).values
    if isinstance(values, Texts):
        assert feature.field is CODES
        return np.append(np.int32(0), feature.codes_of(values.texts))[values.codes]
    return values


def _labels(schema: Schema, column: pa.Array) -> np.ndarray:
    """Return class indices, or numbers as float32, of shape [rows]."""
    if schema.label.classes is None:
        return column.to_numpy(zero_copy_only=False).astype(np.float32)
    return schema.label.numbers_of(column)


def _mismatch(base: S3Address, name: str, received: str) -> DataError:
    return DataError(
        Problem(
            f"the shard {name} of {base} does not match its schema",
            received=received,
            expected="a Parquet file with the columns of schema.json",
            fix=prepare_again(str(base)),
        )
    )
