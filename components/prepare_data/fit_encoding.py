"""Learns the coding of the columns from train: vocabularies, values for gaps, first dates.

Counts, sums and first dates are exact whatever the order of the rows, so parts are counted alone
and merged. Medians and most frequent values are those of the first 100,000 rows of train in the
order of their hashes (fewer if rows are wide), which is all of train in most tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from kfp_tfjob.components.prepare_data.executors.exchange import Array
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import (
    CODES,
    FIELDS,
    FLOATS,
    NO_DATE,
    WHOLES,
    TrainValues,
    missing_in,
)
from kfp_tfjob.options.data import DataOptions

_SAMPLE_ROWS, _SAMPLE_BYTES = 100_000, 64 << 20
GROUPS = 2  # rows whose label is a number, and other rows, which are bad in a regression
_MANTISSA = 24  # bits of a float32
_NEVER = np.iinfo(np.int64).max


def sample_rows(kind: np.dtype) -> int:
    """Return how many rows of train `learn` needs at most, by the type of a row."""
    return max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // kind.itemsize))


@dataclass
class Counted:
    """What rows of train say, in any order.

    Attributes:
        count: The values of each number whose sum is taken.
        sums: The exact sum of each of these numbers, by power of two.
        dates: The values of each date.
        first: The first one.
        codes: For each category and text, the rows by code.
    """

    count: dict[int, int]
    sums: dict[int, Counter[int]]
    dates: Array
    date_sums: list[int]
    first: Array
    codes: list[Array]

    @classmethod
    def empty(cls, kinds: Kinds) -> Counted:
        """Return the counts of a table without rows."""
        floats, dates = kinds.in_field(FLOATS), len(kinds.in_field(WHOLES))
        means = [j for j, item in enumerate(floats) if item.gaps and item.gaps.rule == "mean"]
        return cls(
            dict.fromkeys(means, 0),
            {j: Counter() for j in means},
            np.zeros(dates, np.int64),
            [0] * dates,
            np.full(dates, _NEVER),
            [np.zeros(0, np.int64) for _ in kinds.in_field(CODES)],
        )

    @property
    def is_needed(self) -> bool:
        """Whether anything of the rows counts."""
        return bool(self.count or self.codes or len(self.dates))

    def add(self, rows: np.ndarray) -> None:
        """Add rows of a run."""
        if not len(rows):
            return
        for j in self.count:
            values = rows["features"][:, j]
            values = values[~np.isnan(values)]
            self.count[j] += len(values)
            self.sums[j].update(_exact_sum(values))
        dates = rows["dates"]
        there = dates != NO_DATE
        self.dates += there.sum(0)
        # In two halves, because the sum of many dates does not fit into 64 bits.
        whole = np.where(there, dates, 0)
        high, low = (whole >> 20).sum(0), (whole & 0xFFFFF).sum(0)
        for j, (upper, lower) in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
            self.date_sums[j] += (upper << 20) + lower
        self.first = np.minimum(self.first, np.where(there, dates, _NEVER).min(0))
        for j in range(len(self.codes)):
            self.codes[j] = added(self.codes[j], np.bincount(rows["codes"][:, j]))

    def merge(self, later: Counted, maps: list[np.ndarray | None]) -> None:
        """Add what a later part says.

        `maps` has for each column of codes the code here of each code there; None if equal.
        """
        for j in self.count:
            self.count[j] += later.count[j]
            self.sums[j].update(later.sums[j])
        self.dates += later.dates
        self.date_sums = [
            mine + other for mine, other in zip(self.date_sums, later.date_sums, strict=True)
        ]
        self.first = np.minimum(self.first, later.first)
        for j, (rows, codes) in enumerate(zip(later.codes, maps, strict=True)):
            if codes is not None:
                codes = codes[: len(rows)]
                found = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
                found[codes] = rows
                rows = found
            self.codes[j] = added(self.codes[j], rows)

    def mean(self, j: int) -> float:
        """Return the mean of a number whose sum is taken; 0 without a value."""
        total = sum(
            (Fraction(value) * Fraction(2) ** power for power, value in self.sums[j].items()),
            Fraction(0),
        )
        return float(total / max(self.count[j], 1))

    def mean_date(self, j: int) -> int:
        """Return the mean of a date; 0 without a value."""
        return self.date_sums[j] // max(int(self.dates[j]), 1)


def added(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays of counts of different lengths."""
    found = np.zeros(max(len(counts), len(more)), np.int64)
    found[: len(counts)] += counts
    found[: len(more)] += more
    return found


def _exact_sum(values: np.ndarray) -> dict[int, int]:
    """Return the sum of float32 as whole numbers by the power of two that they are scaled by."""
    values = values[values != 0].astype(np.float64)
    if not len(values):
        return {}
    fractions, powers = np.frexp(values)
    wholes = (fractions * (1 << _MANTISSA)).astype(np.int64)
    found, places = np.unique(powers, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, places, wholes)
    return {
        power - _MANTISSA: value for power, value in zip(found.tolist(), sums.tolist(), strict=True)
    }


def learn(
    kinds: Kinds,
    counted: Counted,
    sample: np.ndarray,
    texts: Mapping[str, tuple[str, ...]],
    options: DataOptions,
) -> Coding:
    """Return the coding, from counts over train and the first `sample_rows` of it.

    `texts` has the texts of each category in the order of their codes.
    """
    at = dict.fromkeys(FIELDS, -1)
    columns = []
    for feature in kinds.features:
        field = feature.type.field
        at[field] += 1
        if field is CODES:
            known, rows = texts.get(feature.name, ()), counted.codes[at[field]]
            values = TrainValues(feature.gaps, np.zeros(0), dictionary=known, rows=rows)
        else:
            values = _values(feature, counted, sample[field.name][:, at[field]], at[field])
        columns.append(feature.type.fit(feature.name, values, options))
    return Coding(tuple(columns))


def _values(feature: Feature, counted: Counted, column: np.ndarray, j: int) -> TrainValues:
    """Return the values of a column with floats or whole numbers, which is column `j` of these."""
    found = np.sort(column[~missing_in(column)])
    if feature.type.field is WHOLES:
        first = int(counted.first[j]) if counted.dates[j] else 0
        return TrainValues(feature.gaps, found, counted.mean_date(j), first)
    is_mean = feature.gaps is not None and feature.gaps.rule == "mean"
    mean = counted.mean(j) if is_mean else 0.0
    return TrainValues(feature.gaps, found.astype(np.float64), mean)
