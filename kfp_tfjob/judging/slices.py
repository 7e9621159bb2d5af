"""Divides the test rows into slices: the rows with one value of a column, or in one range of it.

While the models score the rows, each row gets the number of its slice. Afterwards the predictions
are divided by these numbers, one column at a time, so a slice is evaluated like a whole test split.
Called by `judge`, while it scores the rows, and by the gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.common.escaping import short
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import ColumnType, missing_in
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.options.gate import Slice, edge_value

from .predictions import Predictions
from .rows import Batch

MOST_SLICES = 50  # of a column; the smallest ones are merged, so that the report stays readable
_MOST_VALUES = 5000  # of a column; later values join the merged slice, so that memory is bounded
_LONGEST = 60  # characters of a value in the name of a slice
_MISSING, _OTHER = 0, 1  # numbers of slices; the values follow


@dataclass(frozen=True)
class Part:
    """One slice.

    Attributes:
        source: Its declaration in the gate.
        name: Its name, for example `city = Rome`.
        rows: The number of its rows.
        model: The challenger's predictions; None with too few rows.
        champion: The champion's predictions; None with too few rows, or if there is no champion to
            compare.
    """

    source: Slice
    name: str
    rows: int
    model: Predictions | None = None
    champion: Predictions | None = None


class Slices:
    """The slices of the test rows.

    Args:
        declared: The gate's slices; gate_columns.py has checked that they fit the columns.
        schema: The content of schema.json.
    """

    def __init__(self, declared: Sequence[Slice], schema: Schema) -> None:
        self._columns: list[_Column] = []
        for declared_slice in declared:
            if declared_slice.column == schema.label.name:
                self._columns.append(_Column(declared_slice, None, schema.label.classes))
            else:
                self._columns.append(_Column(declared_slice, schema.type_of(declared_slice.column)))

    def add(self, batch: Batch) -> None:
        """Record the slice of each test row in a batch."""
        for column in self._columns:
            column.add(batch)

    def parts(self, model: Predictions, champion: Predictions | None = None) -> Iterator[Part]:
        """Yield every non-empty slice, a column's largest slices first.

        Args:
            model: The challenger's predictions, for all rows that were added.
            champion: The champion's predictions for the same rows; None without a champion.
        """
        for column in self._columns:
            yield from column.parts(model, champion)


class _Column:
    """Assigns each row a slice number in one column."""

    def __init__(
        self,
        source: Slice,
        column: type[ColumnType] | None,  # None for the label
        classes: Sequence[str] | None = None,
    ) -> None:
        self._source, self._classes = source, classes
        self._is_label, self._column = column is None, column or Number
        self._edges = np.array([edge_value(edge) for edge in source.edges])
        self._codes: dict[Any, int] = {}
        self._rows: list[NDArray[np.int32]] = []

    def add(self, batch: Batch) -> None:
        values = batch.labels if self._is_label else batch.features[self._source.column]
        self._rows.append(
            self._number_by_range(values) if len(self._edges) else self._number_by_value(values)
        )

    def _number_by_range(self, values: NDArray[Any]) -> NDArray[np.int32]:
        missing = False if self._is_label else missing_in(values)
        # Numbers were rounded to float32, and raw ones widened again; so are the edges: 0.7 is in
        # "from 0.7 to below 1". As floats of 64 bits, dates are exact to the microsecond until the
        # year 2255.
        kind = np.float32 if values.dtype.kind == "f" else np.float64
        range_numbers = np.searchsorted(self._edges.astype(kind), values.astype(kind), "right")
        return np.where(missing, _MISSING, range_numbers + _OTHER + 1).astype(np.int32)

    def _number_by_value(self, values: NDArray[Any]) -> NDArray[np.int32]:
        import pyarrow as pa

        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        coded = pa.array(values).dictionary_encode()
        numbers = np.array(
            [self._slice_number(value) for value in coded.dictionary.to_pylist()], np.int32
        )
        return numbers[coded.indices.to_numpy(zero_copy_only=False)]

    def _slice_number(self, value: Any) -> int:
        if value is None or value != value or value == self._column.raw_missing:
            return _MISSING
        if value not in self._codes:
            if len(self._codes) >= _MOST_VALUES:
                return _OTHER
            self._codes[value] = len(self._codes) + _OTHER + 1
        return self._codes[value]

    def parts(self, model: Predictions, champion: Predictions | None) -> Iterator[Part]:
        numbers = np.concatenate(self._rows)
        names = self._names()
        counts = np.bincount(numbers, minlength=max(names) + 1)
        values = np.argsort(-counts[_OTHER + 1 :], kind="stable") + _OTHER + 1
        named = [int(code) for code in values if counts[code]][:MOST_SLICES]
        slice_number = np.full(len(counts), _OTHER)
        slice_number[[_MISSING, *named]] = [_MISSING, *named]
        slice_of = slice_number[numbers]
        for code in (*named, _OTHER, _MISSING):
            rows = np.flatnonzero(slice_of == code)
            if len(rows) >= self._source.min_rows:
                champion_rows = champion[rows] if champion else None
                yield Part(self._source, names[code], len(rows), model[rows], champion_rows)
            elif len(rows):
                yield Part(self._source, names[code], len(rows))

    def _names(self) -> dict[int, str]:
        """Return the slices' names by number."""
        column = short(self._source.column, _LONGEST)
        names = {_MISSING: f"{column} is missing", _OTHER: f"{column}: all other values"}
        if not len(self._edges):
            value_names = {
                code: f"{column} = {self._format_value(value)}"
                for value, code in self._codes.items()
            }
            return names | value_names
        edges = [edge if isinstance(edge, str) else f"{edge:.15g}" for edge in self._source.edges]
        ranges = [f"{column} < {edges[0]}"]
        ranges += [
            f"{low} ≤ {column} < {high}" for low, high in zip(edges[:-1], edges[1:], strict=True)
        ]
        ranges.append(f"{column} ≥ {edges[-1]}")
        return names | {code: name for code, name in enumerate(ranges, _OTHER + 1)}

    def _format_value(self, value: Any) -> str:
        if self._classes:
            return short(str(self._classes[value]), _LONGEST)
        return short(self._column.shown(value), _LONGEST)
