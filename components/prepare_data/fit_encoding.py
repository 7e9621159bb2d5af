"""Learns the coding of the columns from train: vocabularies, values for gaps, first dates.

Counts, sums and first dates are exact whatever the order of the rows, so parts are counted alone
and merged. Medians and most frequent values are those of the first 100,000 rows of train in the
order of their hashes (fewer if rows are wide), which is all of train in most tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

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
_MANTISSA = 24  # bits of a float32
_NEVER = np.iinfo(np.int64).max


def sample_rows(kind: np.dtype) -> int:
    """Return how many rows of train `learn` needs at most, by the type of a row."""
    return max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // kind.itemsize))


class Counted:
    """What rows of train say, in any order.

    Args:
        codes: Categories and texts in a row.
        dates: Dates in a row.
        summed: Which of the numbers have their sum taken.
    """

    def __init__(self, codes: int, dates: int, summed: tuple[int, ...] = ()) -> None:
        self._summed = summed
        self._count = dict.fromkeys(summed, 0)
        self._sums: dict[int, Counter[int]] = {j: Counter() for j in summed}
        self.dates = np.zeros(dates, np.int64)
        self._date_sums = [0] * dates
        self.first = np.full(dates, _NEVER)
        self.codes = [np.zeros(0, np.int64) for _ in range(codes)]

    @property
    def is_needed(self) -> bool:
        """Whether anything of the rows counts."""
        return bool(self._summed or self.codes or len(self.dates))

    def add(self, rows: np.ndarray) -> None:
        """Add rows of a run."""
        if not len(rows):
            return
        for j in self._summed:
            values = rows["features"][:, j]
            values = values[~np.isnan(values)]
            self._count[j] += len(values)
            self._sums[j].update(_exact_sum(values))
        dates = rows["dates"]
        there = dates != NO_DATE
        self.dates += there.sum(0)
        # In two halves, because the sum of many dates does not fit into 64 bits.
        whole = np.where(there, dates, 0)
        high, low = (whole >> 20).sum(0), (whole & 0xFFFFF).sum(0)
        for j, (upper, lower) in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
            self._date_sums[j] += (upper << 20) + lower
        self.first = np.minimum(self.first, np.where(there, dates, _NEVER).min(0))
        for j in range(len(self.codes)):
            self._add_codes(j, np.bincount(rows["codes"][:, j]))

    def merge(self, later: Counted, maps: list[np.ndarray | None]) -> None:
        """Add what a later part says.

        Args:
            later: The part.
            maps: For each column of codes, the code here of each code there; None if equal.
        """
        for j in self._summed:
            self._count[j] += later._count[j]
            self._sums[j].update(later._sums[j])
        self.dates += later.dates
        self._date_sums = [
            mine + other for mine, other in zip(self._date_sums, later._date_sums, strict=True)
        ]
        self.first = np.minimum(self.first, later.first)
        for j, (rows, codes) in enumerate(zip(later.codes, maps, strict=True)):
            if codes is not None:
                codes = codes[: len(rows)]
                found = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
                found[codes] = rows
                rows = found
            self._add_codes(j, rows)

    def _add_codes(self, j: int, rows: np.ndarray) -> None:
        mine = self.codes[j]
        if len(rows) > len(mine):
            mine = np.append(mine, np.zeros(len(rows) - len(mine), np.int64))
        mine[: len(rows)] += rows
        self.codes[j] = mine

    def mean(self, j: int) -> float:
        """Return the mean of a number whose sum is taken; 0 without a value."""
        total = sum(
            (Fraction(value) * Fraction(2) ** power for power, value in self._sums[j].items()),
            Fraction(0),
        )
        return float(total / max(self._count[j], 1))

    def mean_date(self, j: int) -> int:
        """Return the mean of a date; 0 without a value."""
        return self._date_sums[j] // max(int(self.dates[j]), 1)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "summed": list(self._summed),
            "count": list(self._count.values()),
            "sums": [sorted(self._sums[j].items()) for j in self._summed],
            "dates": self.dates.tolist(),
            "date_sums": self._date_sums,
            "first": self.first.tolist(),
            "codes": [rows.tolist() for rows in self.codes],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Counted:
        """Return what `to_plain` has written."""
        found = cls(len(plain["codes"]), len(plain["dates"]), tuple(plain["summed"]))
        found._count = dict(zip(plain["summed"], plain["count"], strict=True))
        pairs = zip(plain["summed"], plain["sums"], strict=True)
        found._sums = {j: Counter(dict(map(tuple, sums))) for j, sums in pairs}
        found.dates = np.array(plain["dates"], np.int64)
        found._date_sums = list(plain["date_sums"])
        found.first = np.array(plain["first"], np.int64)
        found.codes = [np.array(rows, np.int64) for rows in plain["codes"]]
        return found


def counted_for(kinds: Kinds) -> Counted:
    """Return the counts of a table without rows."""
    floats = kinds.in_field(FLOATS)
    summed = tuple(j for j, item in enumerate(floats) if item.gaps and item.gaps.rule == "mean")
    return Counted(len(kinds.in_field(CODES)), len(kinds.in_field(WHOLES)), summed)


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
    """Return the coding.

    Args:
        kinds: The kinds.
        counted: Counts over train.
        sample: The first `sample_rows` of train in the order of their hashes.
        texts: The texts of each category in the order of their codes.
        options: The typed `data_options`.
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
