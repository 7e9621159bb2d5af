"""Writes the test split as a Parquet file of raw columns, for models that are compared by name.

Each feature has its own name: a number is float64 with NaN as gap, a boolean, category or text a
string with an empty one as gap, a date int64 microseconds since 1970 in UTC with -2**63 as gap. A
weight is float32. The label is the index of its class as int64, or float32. The rows are in the
order of the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.components.prepare_data.weights import weights_of
from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, NUMBER, TEXT, Coding

_GROUP_ROWS = 1 << 16
_BOOLEANS = pa.array(["false", "true", ""])


class RawRows:
    """Writes rows to one file.

    Args:
        path: The file.
        coding: The features.
        label: The label.
        weight: The column of weights, or None.
    """

    def __init__(self, path: Path, coding: Coding, label: Label, weight: str | None = None) -> None:
        self._features, self._label = coding.features, label
        self._dictionaries = {
            item.name: pa.array(["", *item.dictionary], pa.string())
            for item in coding.features
            if item.kind == CATEGORY
        }
        types = {NUMBER: pa.float64(), DATE: pa.int64()}
        fields = [(item.name, types.get(item.kind, pa.string())) for item in coding.features]
        kind = pa.float32() if label.classes is None else pa.int64()
        weights = [] if weight is None else [(weight, pa.float32())]
        self._schema = pa.schema([*fields, *weights, (label.name, kind)])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: np.ndarray, labels: np.ndarray, texts: Sequence[pa.Array] = ()) -> None:
        """Add rows, with the texts of each hashed column."""
        at = {"features": 0, "codes": 0, "dates": 0}
        columns = []
        hashed = iter(texts)
        for feature in self._features:
            group = {NUMBER: "features", BOOLEAN: "features", DATE: "dates"}.get(
                feature.kind, "codes"
            )
            values = rows[group][:, at[group]]
            at[group] += 1
            hashed_text = feature.kind == TEXT
            columns.append(
                next(hashed) if hashed_text else self._column(feature.name, feature.kind, values)
            )
        if (weights := weights_of(rows)) is not None:
            columns.append(pa.array(weights))
        columns.append(pa.array(labels).cast(self._schema.field(-1).type))
        self._waiting.append(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left, and end the file."""
        self._flush()
        self._writer.close()

    def _column(self, name: str, kind: str, values: np.ndarray) -> pa.Array:
        if kind == NUMBER:
            return pa.array(values.astype(np.float64))
        if kind == BOOLEAN:
            places = np.where(np.isnan(values), 2, values).astype(np.int64)
            return _BOOLEANS.take(pa.array(places))
        if kind == DATE:
            return pa.array(np.ascontiguousarray(values))
        return self._dictionaries[name].take(pa.array(values.astype(np.int64)))

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table, row_group_size=len(table))
        self._waiting, self._rows = [], 0
