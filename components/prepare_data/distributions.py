"""Counts the rows of each split by a column's values, over bins that the splits share.

The bins come from a sample of train: 20 quantiles of a number or a date, or its values if there are
no more than 20, and one bin below and one above these values; the 100 most frequent values of a
category; false and true; the share of a text's words that are unknown. Missing values have their
own bin, and a hashed text has one other bin.
The counts are whole numbers, so neither the order of the rows nor the number of tasks that count
them has an effect.

PSI, the population stability index, compares the shares of the rows in the same bins: sum of
(p - q) * ln(p / q). Below 0.1 is usual. A bin without rows counts as half a row, so no figure is
infinite. Few rows differ by chance alone: among equal distributions, PSI is about chi-squared with
one degree of freedom for each bin but one, times 1/n + 1/m (Yurdakul, "Statistical properties of
population stability index", 2018).

distributions.json has one entry for each column, which takes a few kilobytes at most. For a wide
table, it has the first 1,000 columns. Called when shards are written; the validation and `kfp-tfjob
monitor` compare the documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import CONTENTS, NO_DATE, ColumnType, Field, missing_in
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.storage import documents

from .buckets import model_values

FORMAT = 1
MOST_COLUMNS = 1000
MOST_BINS = 20  # of a number or a date
MOST_VALUES = 100  # of a category
_MOST_CHARACTERS = 100  # of a value that has a bin
_F32 = np.finfo(np.float32)
QUANTILE = 3.29  # of the normal distribution, 99.95 %: there may be hundreds of columns


@dataclass(frozen=True)
class Bins:
    """The bins of one column, and where its values are in a row of a run.

    Attributes:
        place: Its place in its field; -1 for the label.
        edges: The largest value of each bin but the last, ascending. Of quantiles, the first bin is
            below the values of train, the last one above them.
        values: The strings with their own bin; one more bin has the others.
        codes: The codes of these values in the shards, 0 for one that is not there.
    """

    name: str
    kind: str
    place: int
    edges: tuple[float | int, ...] = ()
    values: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of bins, without the bin of missing values."""
        return 1 + len(self.values if self.type.drift_bins == "values" else self.edges)

    @property
    def type(self) -> type[ColumnType]:
        """Its type."""
        return TYPES[self.kind]

    def counted(self, column: np.ndarray) -> np.ndarray:
        """Return the number of missing values, and of the rows in each bin: int64 [1 + count].

        Args:
            column: Contiguous values. A missing one is NaN in float32, 0 in codes, or NO_DATE in
                int64.
        """
        if self.type.drift_bins == "values":
            return self._of_codes(np.bincount(column, minlength=1))
        missing = int(np.count_nonzero(missing_in(column)))
        edges = np.array(self.edges, column.dtype)
        cumulative = [int(np.count_nonzero(column <= edge)) for edge in edges]
        if column.dtype.kind == "i":  # NO_DATE is the smallest number; NaN is below no edge
            cumulative = [rows - missing for rows in cumulative]
        return np.array([missing, *np.diff([0, *cumulative, len(column) - missing])], np.int64)

    def _of_codes(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows by bin from the rows of each code."""
        codes = np.array(self.codes, np.int64)
        is_coded = (codes > 0) & (codes < len(rows))
        bins = np.where(is_coded, rows[np.where(is_coded, codes, 0)], 0)
        gaps, total = rows[0], rows.sum()
        return np.array([gaps, *bins, total - gaps - bins.sum()], np.int64)


@dataclass(frozen=True, kw_only=True)
class ColumnRows:
    """The rows of a column by split and bin; its bins have `values` or `edges`, as in Bins."""

    name: str
    kind: str
    values: tuple[str, ...] | None = None
    edges: tuple[int | float, ...] | None = None
    gaps: Mapping[str, int]
    counts: Mapping[str, list[int]]

    @classmethod
    def from_counts(cls, bins: Bins, counts: np.ndarray) -> ColumnRows:
        """Return a column's entry in distributions.json.

        Args:
            bins: The column's bins.
            counts: (splits, 1 + bins) rows; those with a missing value first.
        """
        by, fixed = bins.type.drift_bins, bins.type.fixed_edges
        return cls(
            name=bins.name,
            kind=bins.kind,
            values=bins.values if by == "values" else None,
            edges=bins.edges if by == "edges" and not fixed else None,
            gaps=dict(zip(SPLITS, counts[:, 0].tolist(), strict=True)),
            counts=dict(zip(SPLITS, counts[:, 1:].tolist(), strict=True)),
        )

    def bins(self, place: int, dictionary: tuple[str, ...]) -> Bins:
        """Return its bins for the rows of a dataset with its own place and dictionary."""
        if self.values is not None:
            codes = _codes_of(self.values, dictionary)
            return Bins(self.name, self.kind, place, (), self.values, codes)
        edges = TYPES[self.kind].fixed_edges if self.edges is None else self.edges
        return Bins(self.name, self.kind, place, edges)

    def rows(self, split: str) -> list[int]:
        """Return the rows of a split by bin, those with a missing value first."""
        return [self.gaps[split], *self.counts[split]]


@dataclass(frozen=True, kw_only=True)
class DistributionsDocument:
    """The content of distributions.json; it has a label that is a number, but no classes."""

    format: int = FORMAT
    columns: tuple[ColumnRows, ...]
    label: ColumnRows | None = None
    columns_left_out: int | None = None

    @property
    def by_name(self) -> dict[str, ColumnRows]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    @classmethod
    def from_bytes(cls, data: bytes) -> DistributionsDocument:
        """Read it back; raises ValueError if it is none."""
        return documents.read(cls, data, None)

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return documents.to_bytes(self, sparse=True)


@dataclass
class Distributions:
    """The rows of each split by the bins of at most MOST_COLUMNS features, and of a numeric label.

    Attributes:
        counts: For each column, int64 of shape [3, 1 + bins], with the missing values first.
    """

    columns: tuple[Bins, ...]
    label: Bins | None = None
    left_out: int = 0

    def __post_init__(self) -> None:
        """Begin without rows."""
        self._bins = [*self.columns, *([self.label] if self.label else [])]
        self.counts = [np.zeros((len(SPLITS), 1 + bins.count), np.int64) for bins in self._bins]

    @classmethod
    def of(
        cls, coding: Coding, sample: np.ndarray, labels: np.ndarray | None = None, label: str = ""
    ) -> Distributions:
        """Return the bins that suit rows of train, as they are in the runs, and a numeric label."""
        placed = [
            (coded, at)
            for coded, at in zip(coding.features, coding.places, strict=True)
            if coded.field is not CONTENTS
        ]
        columns = tuple(_bins_of(coded, *at, sample) for coded, at in placed[:MOST_COLUMNS])
        label_bins = None
        if labels is not None:
            label_bins = Bins(label, Number.kind, -1, edges_of(labels.astype(np.float32)))
        return cls(columns, label_bins, len(placed) - len(columns))

    @classmethod
    def of_file(cls, file: DistributionsDocument, coding: Coding) -> Distributions:
        """Return the bins of another dataset's distributions.json for the rows of this one.

        Only columns that both datasets contain, with the same type, get bins.
        """
        columns_of_file = file.by_name
        columns = tuple(
            columns_of_file[coded.name].bins(place, coded.strings)
            for coded, (_, place) in zip(coding.features, coding.places, strict=True)
            if coded.name in columns_of_file and columns_of_file[coded.name].kind == coded.kind
        )
        return cls(columns, file.label and file.label.bins(-1, ()))

    @property
    def is_needed(self) -> bool:
        """Whether there are bins; a dataset of images lacks them."""
        return bool(self._bins)

    def add(self, split: str, rows: np.ndarray, labels: np.ndarray | None = None) -> None:
        """Add rows of the runs, best some thousand at a time: it costs twenty calls a column."""
        split_index = SPLITS.index(split)
        for bins, counts in zip(self._bins, self.counts, strict=True):
            if bins.place >= 0:
                counts[split_index] += bins.counted(model_values(rows, bins.type.field, bins.place))
            elif labels is not None:
                counts[split_index] += bins.counted(labels.astype(np.float32))

    def merge(self, counts_of_part: Sequence[np.ndarray]) -> None:
        """Add the counts of other rows over the same bins."""
        for counts, added in zip(self.counts, counts_of_part, strict=True):
            counts += added

    def document(self) -> DistributionsDocument:
        """Return the content of distributions.json."""
        columns = [
            ColumnRows.from_counts(*pair) for pair in zip(self._bins, self.counts, strict=True)
        ]
        label = columns.pop() if self.label else None
        return DistributionsDocument(
            columns=tuple(columns), label=label, columns_left_out=self.left_out or None
        )


def _bins_of(coded: ColumnType, field: Field, place: int, sample: np.ndarray) -> Bins:
    if coded.drift_bins == "values":
        usual = (text for text in coded.frequent if len(text) <= _MOST_CHARACTERS)
        values = tuple(islice(usual, MOST_VALUES))
        return Bins(coded.name, coded.kind, place, (), values, _codes_of(values, coded.strings))
    edges = coded.fixed_edges
    if coded.drift_bins and not edges:
        edges = edges_of(model_values(sample, field, place))
    return Bins(coded.name, coded.kind, place, edges)


def _codes_of(values: tuple[str, ...], dictionary: tuple[str, ...]) -> tuple[int, ...]:
    values_with_bin = set(values)
    codes = {text: 1 + i for i, text in enumerate(dictionary) if text in values_with_bin}
    return tuple(codes.get(value, 0) for value in values)


def edges_of(column: np.ndarray, most: int = MOST_BINS) -> tuple[float | int, ...]:
    """Return the edges of numbers or dates: quantiles, or all values if they are few.

    The first edge is just below the smallest value and the last one is the largest value, so values
    outside the range of `column` are in bins of their own.
    """
    is_whole = column.dtype.kind == "i"
    present = np.sort(column[column != NO_DATE] if is_whole else column[~np.isnan(column)])
    least = present[:1]
    # np.unique would hash all values, which takes three times as long as the sort.
    edges = present[np.append(least == least, present[1:] != present[:-1])]
    if len(edges) > most:
        # Values that occur, so that a value with many rows is the end of a bin.
        places = [-(-len(present) * i // most) - 1 for i in range(1, most + 1)]
        edges = np.unique(present[places])
    # No subnormal number below 0: some libraries let the processor treat it as 0.
    below = least - 1 if is_whole else np.minimum(np.nextafter(least, _F32.min), least - _F32.tiny)
    edges = np.unique([*below, *edges])
    # The shortest decimal that is the same float32.
    return tuple(edges.tolist() if is_whole else (float(str(edge)) for edge in edges))


@dataclass(frozen=True)
class Drift:
    """How far two distributions are apart.

    Attributes:
        psi: The population stability index.
        chance: The PSI that rows of one distribution reach by chance, once in 2,000 columns.
    """

    psi: float
    chance: float

    @property
    def is_chance(self) -> bool:
        """Whether so few rows may differ so much by chance."""
        return self.psi <= self.chance


def measure(before: Sequence[float], now: Sequence[float]) -> Drift | None:
    """Return the drift between two counts over the same bins; None if either is without rows."""
    old, new = np.array(before, np.float64), np.array(now, np.float64)
    used = (old + new) > 0
    old, new = old[used], new[used]
    rows = old.sum(), new.sum()
    if not rows[0] or not rows[1]:
        return None
    p, q = _shares(old), _shares(new)
    chance = _chi_squared(len(p) - 1) * (1 / rows[0] + 1 / rows[1])
    return Drift(float(((p - q) * np.log(p / q)).sum()), float(chance))


def _shares(counts: np.ndarray) -> np.ndarray:
    """Return shares without a 0."""
    if not (counts == 0).any():
        return counts / counts.sum()
    filled = np.where(counts == 0, 0.5, counts)
    return filled / filled.sum()


def _chi_squared(freedom: int) -> float:
    """Return the 0.9995 quantile of the chi-squared distribution (Wilson and Hilferty)."""
    if not freedom:
        return 0.0
    part = 2 / (9 * freedom)
    return freedom * (1 - part + QUANTILE * math.sqrt(part)) ** 3
