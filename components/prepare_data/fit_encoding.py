"""Learns the encoding of the columns from train: vocabularies, replacements, first dates.

Counts and first dates cover all rows, so each part is counted alone and then merged. Replacements
of missing values come from the first 100,000 rows of train in the order of their hashes (fewer if
rows are wide), which is all of train in most tables. Called before the shards are written, because
they contain encoded rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import (
    CODES,
    CONTENTS,
    FIELDS,
    NO_DATE,
    WHOLES,
    Tally,
    TrainValues,
    missing_in,
)
from kfp_tfjob.options.data import DataOptions

from .buckets import model_values
from .kinds import Feature, Kinds

_SAMPLE_ROWS, _SAMPLE_BYTES = 100_000, 64 << 20
GROUPS = 2  # rows whose label is a number, and other rows, which are bad in a regression
_LATEST = 2**63 - 1
_SAME_CODES: Mapping[str, np.ndarray] = MappingProxyType({})


def sample_rows(kind: np.dtype) -> int:
    """Return how many rows of train `learn` needs at most, by the type of a row."""
    return max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // kind.itemsize))


@dataclass
class Ends:
    """The number of dates in each column, and the smallest and the largest one, exact."""

    count: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    @classmethod
    def empty(cls, columns: int) -> Ends:
        """Return the ends of columns without values."""
        return cls(
            np.zeros(columns, np.int64), np.full(columns, _LATEST), np.full(columns, NO_DATE)
        )

    def add(self, values: np.ndarray) -> None:
        """Add int64 values of shape [rows, columns], NO_DATE for a missing value."""
        gaps = values == NO_DATE
        least, most = np.where(gaps, _LATEST, values).min(0), values.max(0)
        self.merge(Ends(len(values) - gaps.sum(0), least, most))

    def merge(self, ends: Ends) -> None:
        """Add the ends of other rows."""
        self.count = self.count + ends.count
        self.minimum = np.minimum(self.minimum, ends.minimum)
        self.maximum = np.maximum(self.maximum, ends.maximum)


@dataclass
class Counted:
    """Counts over rows of train, in any order.

    Attributes:
        dates: The count, minimum and maximum of each date column.
        codes: For each column of strings, the rows by code, or by the bin of a hash.
        names: The names of the columns in `codes`.
    """

    dates: Ends
    codes: list[np.ndarray]
    names: tuple[str, ...] = ()

    @classmethod
    def empty(cls, kinds: Kinds) -> Counted:
        """Return the counts of a table without rows."""
        names = tuple(feature.name for feature in kinds.in_field(CODES))
        codes = [np.zeros(0, np.int64) for _ in names]
        return cls(Ends.empty(len(kinds.in_field(WHOLES))), codes, names)

    @property
    def is_needed(self) -> bool:
        """Whether any column has to be counted."""
        return bool(self.codes or len(self.dates.count))

    def add(self, dates: np.ndarray, codes: list[np.ndarray]) -> None:
        """Add rows: their dates, int64 of shape [rows, dates], and the codes of each column."""
        if not len(dates):
            return
        self.dates.add(dates)
        for j, column in enumerate(codes):
            self.codes[j] = added(self.codes[j], np.bincount(column))

    def merge(self, part: Counted, codes: Mapping[str, np.ndarray] = _SAME_CODES) -> None:
        """Add the rows of a later part; `codes` has the code here of each code there."""
        self.dates.merge(part.dates)
        for j, (name, rows) in enumerate(zip(self.names, part.codes, strict=True)):
            if name in codes:
                here = codes[name]
                size = min(len(here), len(rows))  # of a lost dictionary, there are no codes
                rows = np.bincount(here[:size], rows[:size]).astype(np.int64)
            self.codes[j] = added(self.codes[j], rows)


def added(counts: np.ndarray, others_counts: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays of counts of different lengths."""
    total = np.zeros(max(len(counts), len(others_counts)), np.int64)
    total[: len(counts)] += counts
    total[: len(others_counts)] += others_counts
    return total


def learn(
    kinds: Kinds,
    counted: Counted,
    sample: np.ndarray,
    texts: Mapping[str, tuple[str, ...]],
    options: DataOptions,
    tallies: Mapping[str, Tally] = MappingProxyType({}),
) -> Coding:
    """Return the coding, from counts over train and the first `sample_rows` of it.

    `texts` has the strings of each category in the order of their codes, and `tallies` the counts
    of the strings from which other types learn.

    Raises:
        DataError: The strings of a column are too few to learn from.
    """
    at = dict.fromkeys(FIELDS, -1)
    columns = []
    for feature in kinds.features:
        field = feature.type.field
        at[field] += 1
        if field is CODES:
            strings, rows = texts.get(feature.name, ()), counted.codes[at[field]]
            values = TrainValues(
                feature.gaps,
                np.zeros(0),
                dictionary=strings,
                rows=rows,
                tally=tallies.get(feature.name),
            )
        elif field is CONTENTS:
            values = TrainValues(feature.gaps, np.zeros(0))  # nothing is learned
        else:
            column = model_values(sample, field, at[field])
            values = _values(feature, counted, column, at[field])
        columns.append(feature.type.fit(feature.name, values, options))
    return Coding(tuple(columns))


def _values(feature: Feature, counted: Counted, column: np.ndarray, j: int) -> TrainValues:
    """Return the values of a column with floats or whole numbers, which is column `j` of these."""
    present = np.sort(column[~missing_in(column)])
    if feature.type.field is WHOLES:
        first = int(counted.dates.minimum[j]) if counted.dates.count[j] else 0
        return TrainValues(feature.gaps, present, first)
    return TrainValues(feature.gaps, present.astype(np.float64))
