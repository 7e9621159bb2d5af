"""Computes statistics of the written rows: features, class counts, duplicates, conflicts.

Those of parts merge in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kfp_tfjob.components.prepare_data.buckets import model_numbers, model_values
from kfp_tfjob.components.prepare_data.column_warnings import (
    column_warnings,
    label_suspicions,
    label_warnings,
)
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.fit_encoding import Counted
from kfp_tfjob.components.prepare_data.kinds import Kinds
from kfp_tfjob.components.prepare_data.labels import Label
from kfp_tfjob.components.prepare_data.weights import WeightSums, weights_of
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import (
    SPLITS,
    BadRows,
    LabelStatistics,
    PackedColumn,
    StatisticsDocument,
)
from kfp_tfjob.features.types.base import (
    CODES,
    FLOATS,
    WHOLES,
    ColumnMoments,
    Field,
    Summary,
    bars_of,
    missing_in,
)
from kfp_tfjob.options.data import DataOptions

NO_MOMENTS = ColumnMoments(mean=0.0, std=0.0)
_OF_CODES = ColumnMoments(mean=0.0, std=1.0)
SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20
_CHUNK_VALUES = 1 << 20


@dataclass
class Moments:
    """Mean, deviation and range of columns, in float64, merged as in Chan et al. (1979).

    Attributes:
        count: The values of each column that are not missing.
        squares: The sum of the squares of their deviations from the mean.
    """

    count: np.ndarray
    zeros: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    @classmethod
    def empty(cls, columns: int) -> Moments:
        """Return the moments of no values."""
        counts, zeros = np.zeros((2, columns), np.int64)
        mean, squares = np.zeros((2, columns))
        ends = np.full(columns, np.inf), np.full(columns, -np.inf)
        return cls(counts, zeros, mean, squares, *ends)

    def add(self, values: np.ndarray, width: int = 0) -> None:
        """Add floats of shape [rows, columns], NaN if missing; a whole row has `width`."""
        if not values.shape[1]:
            return
        # Another size would round the sums differently.
        step = max(1, _CHUNK_VALUES // (width or values.shape[1]))
        for start in range(0, len(values), step):
            self._add(values[start : start + step])

    def _add(self, values: np.ndarray) -> None:
        gaps = np.isnan(values)
        part = values.astype(np.float64)
        count = np.full(values.shape[1], len(values))
        low = high = values
        zeros = part == 0
        zeros = zeros.sum(0) if zeros.any() else np.zeros_like(count)
        some = gaps.any()
        if some:
            count -= gaps.sum(0)
            part[gaps] = 0
            low, high = np.where(gaps, np.inf, values), np.where(gaps, -np.inf, values)
        mean = part.sum(0) / np.maximum(count, 1)
        part -= mean
        part *= part
        if some:
            part[gaps] = 0
        self.merge(Moments(count, zeros, mean, part.sum(0), low.min(0), high.max(0)))

    def merge(self, moments: Moments) -> None:
        """Add the moments of later rows."""
        total = np.maximum(self.count + moments.count, 1)
        delta = np.where(moments.count > 0, moments.mean - self.mean, 0)
        self.squares += moments.squares
        self.squares += delta**2 * (self.count * moments.count / total)
        self.mean = self.mean + delta * (moments.count / total)
        self.zeros += moments.zeros
        self.count = self.count + moments.count
        self.minimum = np.minimum(self.minimum, moments.minimum)
        self.maximum = np.maximum(self.maximum, moments.maximum)

    def column(self, i: int) -> ColumnMoments:
        """Return the moments of one column, zeros if it has no value."""
        count = int(self.count[i])
        if not count:
            return NO_MOMENTS
        return ColumnMoments(
            count=count,
            mean=float(self.mean[i]),
            std=float(np.sqrt(self.squares[i] / count)),
            min=float(self.minimum[i]),
            max=float(self.maximum[i]),
            zeros=int(self.zeros[i]),
        )


@dataclass(frozen=True)
class Train:
    """What is known of the rows before they are merged into shards.

    Attributes:
        sample: The first rows of train in the order of their hashes.
        labels: Their labels, of at most SAMPLE_ROWS.
        counted: Of all rows of train.
        classes: int64 of shape [3, classes], rows by split and class.
    """

    sample: np.ndarray
    labels: np.ndarray
    counted: Counted
    classes: np.ndarray

    def sampled(self, at: tuple[Field, int]) -> np.ndarray:
        """Return the sample of the column at a place of a row; empty for codes."""
        field, j = at
        if field is CODES:
            return np.zeros(0)
        sample = self.sample[: sample_rows(self.sample.dtype)]
        return model_values(sample, field, j)


@dataclass
class Statistics:
    """What the rows of some shards add up to.

    Attributes:
        floats: Of the numbers of train.
        packed: Of the numbers in the model's input over train; None if they are those of `floats`.
        labels: Of a label that is a number, by split; none of classes.
        duplicates: Rows with the features of the row before.
        conflicts: Such rows with another label.
        ends: Hash and label of the first and the last row.
        weights: The sums of the weights, if there are any, by split.
        classes: How many classes the label has; 0 for a number.
    """

    floats: Moments
    packed: Moments | None
    labels: list[Moments]
    duplicates: int = 0
    conflicts: int = 0
    ends: list[tuple[int, float]] = field(default_factory=list)
    weights: list[WeightSums] = field(default_factory=lambda: [WeightSums() for _ in SPLITS])
    classes: int = 0

    @classmethod
    def empty(cls, coding: Coding, label: Label) -> Statistics:
        """Return the statistics of no rows."""
        floats, _, _ = coding.lengths
        return cls(
            Moments.empty(floats),
            None if coding.is_identity else Moments.empty(coding.numbers),
            [Moments.empty(1) for _ in SPLITS] if label.classes is None else [],
            classes=len(label.classes or ()),
        )

    def add(self, rows: np.ndarray, split: int, labels: np.ndarray, coding: Coding) -> None:
        """Add rows of a split in the order of hash and label, with their labels."""
        if not len(rows):
            return
        hashes = rows["hash"]
        same = hashes[1:] == hashes[:-1]
        self.duplicates += int(same.sum())
        self.conflicts += int((same & (labels[1:] != labels[:-1])).sum())
        self._follow([(int(hashes[i]), labels[i].item()) for i in (0, -1)])
        if self.labels:
            self.labels[split].add(labels[:, None])
        if (weights := weights_of(rows)) is not None:
            self.weights[split].add(weights, labels, self.classes)
        if split == 0:
            numbers = model_numbers(rows)
            self.floats.add(numbers)
            if self.packed:
                lists = numbers, rows["codes"].astype(np.int64), rows["dates"]
                self.packed.add(coding.pack_numbers(*lists), coding.width)

    def merge(self, part: Statistics) -> None:
        """Add the statistics of the rows that follow."""
        self.floats.merge(part.floats)
        if self.packed and part.packed:
            self.packed.merge(part.packed)
        for moments, moments_of_part in zip(self.labels, part.labels, strict=True):
            moments.merge(moments_of_part)
        for sums, sums_of_part in zip(self.weights, part.weights, strict=True):
            sums.merge(sums_of_part)
        self.duplicates += part.duplicates
        self.conflicts += part.conflicts
        self._follow(part.ends)

    def _follow(self, ends: list[tuple[int, float]]) -> None:
        """Compare the last row so far with the first one of those that follow."""
        if self.ends and ends:
            (before, label), (after, other) = self.ends[1], ends[0]
            self.duplicates += before == after
            self.conflicts += before == after and label != other
        if ends:
            self.ends = [(self.ends or ends)[0], ends[1]]

    def summary(self, at: tuple[Field, int], train: Train) -> Summary:
        """Return the column's values at a place of a row."""
        field, j = at
        if field is CODES:
            rows = train.counted.codes[j][1:]
            return Summary(int(rows.sum()), NO_MOMENTS, None, None, np.zeros(0), rows)
        column = self.floats if field is FLOATS else train.counted.dates
        count, sample = int(column.count[j]), train.sampled(at)
        ends = (None, None)
        if count:
            ends = column.minimum[j].item(), column.maximum[j].item()
        moments = self.floats.column(j) if field is FLOATS else NO_MOMENTS
        sample = sample[~missing_in(sample)]
        return Summary(count, moments, *ends, sample, np.zeros(0, np.int64))


def sample_rows(kind: np.dtype) -> int:
    """Return how many rows of train `described` needs at most, by the type of a row."""
    size = sum(kind[field.name].itemsize for field in (FLOATS, WHOLES))
    return max(1, min(SAMPLE_ROWS, _SAMPLE_BYTES // max(size, 1)))


def described(
    totals: Statistics,
    train: Train,
    coding: Coding,
    kinds: Kinds,
    label: Label,
    rows: dict[str, int],
    faults: Faults,
    options: DataOptions,
    suspicions: Sequence[str] = (),
) -> StatisticsDocument:
    """Return the content of statistics.json.

    Its figures are finite. Features and a numeric label are described over train, because
    normalisation uses these values. The label is also described by split. `suspicions` are those of
    the rows as a whole.
    """
    features, suspected = {}, []
    for coded, place in zip(coding.features, coding.places, strict=True):
        summary = totals.summary(place, train)
        about = {"count": summary.count, "missing": rows["train"] - summary.count}
        features[coded.name] = replace(coded.describe(summary), kind=coded.kind, **about)
        suspected += coded.suspicions(summary, features[coded.name], options)
    suspected += [*label_suspicions(label), *suspicions]
    warnings = column_warnings(kinds, coding, features, train.sampled)
    warnings += label_warnings(label.classes or (), train.classes, label.padded)
    warnings += [text for text in suspected if text not in warnings]
    if totals.conflicts:
        warnings.append(
            "rows with the same features as an earlier row but a different label:"
            f" {totals.conflicts:,}"
        )
    bad = faults.counts()
    return StatisticsDocument(
        features=features,
        packed=tuple(_packed(totals, coding)),
        label=_label(totals, train, label),
        rows={"read": faults.seen, **rows},
        duplicates=totals.duplicates,
        conflicts=totals.conflicts,
        bad_rows=BadRows(sum(bad.values()), bad),
        warnings=tuple(warnings),
        suspicions=tuple(suspected) or None,
        rows_left_out=dict(sorted(faults.left_out.items())) or None,
    )


def _packed(totals: Statistics, coding: Coding) -> Iterator[PackedColumn]:
    """Yield mean and deviation of each value that the model gets; codes stay as they are."""
    moments = totals.packed or totals.floats
    for i, name in enumerate(coding.names):
        column = moments.column(i) if i < coding.numbers else _OF_CODES
        yield PackedColumn(name, column.mean, column.std)


def _label(totals: Statistics, train_rows: Train, label: Label) -> LabelStatistics:
    if label.classes is not None:
        return LabelStatistics.of_classes(label.name, label.classes, train_rows.classes)
    train, validation, test = (moments.column(0) for moments in totals.labels)
    return LabelStatistics(
        **vars(train),
        name=label.name,
        histogram=bars_of(train_rows.labels.astype(np.float64), train.min, train.max),
        train=train,
        validation=validation,
        test=test,
    )
