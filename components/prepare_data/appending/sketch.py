"""A short description of the values of a column: some of them, each with a number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.distinct import distinct
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of


@dataclass(frozen=True)
class Sketch:
    """Values and the rows that they stand for.

    A sketch of few different values is exact. Otherwise a value stands for itself and for smaller
    ones down to the value before, so the rows up to any of its values are counted exactly.

    Attributes:
        values: float32 or int64 of shape [values], ascending.
        rows: int64 of shape [values].
    """

    values: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, column: np.ndarray) -> Sketch:
        """Return the exact sketch of values without gaps, of shape [rows]."""
        return cls(*np.unique(column, return_counts=True))

    @classmethod
    def merged(cls, sketches: Iterable[Sketch]) -> Sketch:
        """Return the sketch of all rows together; at least one sketch."""
        parts = list(sketches)
        values, places = np.unique(
            np.concatenate([part.values for part in parts]), return_inverse=True
        )
        rows = np.zeros(len(values), np.int64)
        np.add.at(rows, places, np.concatenate([part.rows for part in parts]))
        return cls(values, rows)

    @property
    def total(self) -> int:
        """The rows."""
        return int(self.rows.sum())

    def shortened(self, most: int) -> Sketch:
        """Return a sketch of at most so many values, each for about as many rows."""
        if len(self.values) <= most:
            return self
        ends = np.cumsum(self.rows)
        wanted = ends[-1] * np.arange(1, most + 1) // most
        places = distinct(np.searchsorted(ends, wanted))
        return Sketch(self.values[places], np.diff(ends[places], prepend=0))

    def up_to(self, edges: np.ndarray) -> np.ndarray:
        """Return int64 of the shape of `edges`: the rows with a value of at most each."""
        ends = np.concatenate([[0], np.cumsum(self.rows)])
        return ends[np.searchsorted(self.values, edges, side="right")]

    def drawn(self, count: int) -> np.ndarray:
        """Return so many values at equal distances in their order; all values if count is total."""
        if not count:
            return self.values[:0]
        total = self.total
        places = (2 * np.arange(count, dtype=np.int64) + 1) * total // (2 * count)
        return self.values[np.searchsorted(np.cumsum(self.rows), places, side="right")]

    def to_plain(self) -> list[Any]:
        """Return it as JSON values."""
        kind = np.min_scalar_type(int(self.rows.max(initial=0)))
        return [plain_of(self.values), plain_of(self.rows.astype(kind))]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Sketch:
        """Return what `to_plain` has written."""
        values, rows = map(array_of, plain)
        return cls(values, rows.astype(np.int64))
