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
from kfp_tfjob.features.coding import Coding

_GROUP_ROWS = 1 << 16


class RawRows:
    """Writes rows to one file.

    Args:
        path: The file.
        coding: The features.
        label: The label.
        weight: The column of weights, or None.
    """

    def __init__(self, path: Path, coding: Coding, label: Label, weight: str | None = None) -> None:
        self._coding, self._label = coding, label
        fields = [(it.name, pa.type_for_alias(it.raw_types[0])) for it in coding.features]
        kind = pa.float32() if label.classes is None else pa.int64()
        weights = [] if weight is None else [(weight, pa.float32())]
        self._schema = pa.schema([*fields, *weights, (label.name, kind)])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: np.ndarray, labels: np.ndarray, texts: Sequence[pa.Array] = ()) -> None:
        """Add rows, with the texts of each hashed column."""
        hashed = iter(texts)
        columns = [
            next(hashed) if it.is_hashed else it.raw_column(rows[field.name][:, place])
            for it, (field, place) in zip(self._coding.features, self._coding.places, strict=True)
        ]
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

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table, row_group_size=len(table))
        self._waiting, self._rows = [], 0
