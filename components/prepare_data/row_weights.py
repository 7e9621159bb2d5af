"""Reads the weights of rows: the column that data_options.weight names.

Called by the tasks that read parts of the source, and when data_uri is resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.cells import shown, textual
from kfp_tfjob.features.statistics import SplitWeights, WeightedLabel
from kfp_tfjob.features.types.number import Number

from .source.readers.arrow_table import Chunk


def read(chunk: Chunk, name: str) -> np.ndarray:
    """Return float32 of shape [rows], finite and 0 or more; mark rows with a bad weight."""
    cells, faults = chunk.cells(name), chunk.faults
    kind = cells.column.type
    if not (cells.is_numeric or textual(kind) or pa.types.is_binary(kind)):
        faults.mark(np.ones(len(cells.column), bool), "text", name, lambda i: f"the type {kind}")
        return np.zeros(len(cells.column), np.float32)
    numbers, invalid = Number.parse(cells)
    assert isinstance(numbers, np.ndarray)
    invalid |= {"missing": np.isnan(numbers), "weight": numbers < 0}
    for rule, mask in invalid.items():
        faults.mark(mask, rule, name, lambda i: shown(cells.column, i))
    bad = np.any(list(invalid.values()), axis=0)
    return np.where(bad, 0, numbers).astype(np.float32)


def weights_of(rows: np.ndarray) -> np.ndarray | None:
    """Return the rows' weights; None if the rows are not weighted."""
    return rows["weight"] if "weight" in (rows.dtype.names or ()) else None


@dataclass
class WeightSums:
    """Sums of one split's weights, or of a part of it; they merge in order.

    Attributes:
        zeros: How many rows have the weight 0.
        least: The smallest weight; None without rows.
        labels: Of a classification the sums by class, else one number: of weight times label.
    """

    rows: int = 0
    zeros: int = 0
    sum: float = 0.0
    least: float | None = None
    most: float = 0.0
    labels: list[float] = field(default_factory=list)

    def add(self, weights: np.ndarray, labels: np.ndarray, classes: int = 0) -> None:
        """Add rows with their classes or, if there are none, values."""
        if not len(weights):
            return
        self.rows += len(weights)
        self.zeros += int((weights == 0).sum())
        self.sum += float(weights.sum(dtype=np.float64))
        least = float(weights.min())
        self.least = least if self.least is None else min(self.least, least)
        self.most = max(self.most, float(weights.max()))
        exact = weights.astype(np.float64)
        if classes:
            sums = np.bincount(labels.astype(np.int64), exact, classes).tolist()
        else:
            sums = [float((exact * labels).sum())]
        self.labels = _added(self.labels, sums)

    def merge(self, sums: WeightSums) -> None:
        """Add the sums of later rows."""
        self.rows += sums.rows
        self.zeros += sums.zeros
        self.sum += sums.sum
        minima = [least for least in (self.least, sums.least) if least is not None]
        self.least, self.most = min(minima, default=None), max(self.most, sums.most)
        self.labels = _added(self.labels, sums.labels)

    def of_split(self, classes: Sequence[str] | None = None) -> SplitWeights:
        """Return a split's entry in statistics.json."""
        label = WeightedLabel()
        if classes and self.labels:
            label = WeightedLabel(
                dict.fromkeys(classes, 0.0) | dict(zip(classes, self.labels, strict=False))
            )
        elif self.labels and self.sum:
            label = WeightedLabel(mean=self.labels[0] / self.sum)
        mean = self.sum / self.rows if self.rows else 0.0
        return SplitWeights(self.rows, mean, self.least or 0.0, self.most, self.zeros, label)


def _added(sums: list[float], more_sums: list[float]) -> list[float]:
    return [a + b for a, b in zip_longest(sums, more_sums, fillvalue=0.0)]


def check(name: str, splits: dict[str, WeightSums]) -> None:
    """Reject weights that are all 0 in a split."""
    if empty := [split for split, sums in splits.items() if sums.rows and not sums.sum]:
        raise DataError(
            Problem(
                f"every weight of {name!r} is 0 in {', '.join(empty)}",
                expected="rows that count in train, validation and test",
                fix="correct the weights, or split the rows differently with data_options.split",
                path="data_options.weight",
            )
        )
