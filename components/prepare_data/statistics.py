"""Computes statistics of the written rows: features, class counts, duplicates, conflicts.

Those of parts merge in the order of the rows. Called by the tasks that write shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.moments import NO_MOMENTS, Moments
from kfp_tfjob.features.statistics import (
    SPLITS,
    BadRows,
    LabelStatistics,
    StatisticsDocument,
)
from kfp_tfjob.features.types.base import (
    CODES,
    FLOATS,
    WHOLES,
    Field,
    Summary,
    Tally,
    bars_of,
    missing_in,
)
from kfp_tfjob.options.data import DataOptions

from .buckets import model_numbers, model_values
from .column_warnings import column_warnings, label_suspicions, label_warnings
from .faults import Faults
from .fit_encoding import Counted
from .kinds import Kinds
from .labels import Label
from .row_weights import WeightSums, weights_of

SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Train:
    """A sample and counts of the rows, known before they are merged into shards.

    Attributes:
        sample: The first rows of train in the order of their hashes.
        labels: The labels of the first SAMPLE_ROWS of them.
        counted: The counts over all rows of train.
        classes: int64 of shape [3, classes], rows by split and class.
        tallies: The counts over the strings of train, by column, of types that learn from them.
    """

    sample: np.ndarray
    labels: np.ndarray
    counted: Counted
    classes: np.ndarray
    tallies: Mapping[str, Tally] = field(default_factory=dict)

    def sampled(self, at: tuple[Field, int]) -> np.ndarray:
        """Return the sample of the column at a place of a row; empty for codes."""
        field, j = at
        if field is CODES:
            return np.zeros(0)
        sample = self.sample[: sample_rows(self.sample.dtype)]
        return model_values(sample, field, j)


@dataclass
class Statistics:
    """Totals over the rows of some shards.

    Attributes:
        floats: The moments of train's numbers.
        labels: The moments of a numeric label by split; empty for classes.
        duplicates: Rows with the features of the row before.
        conflicts: Such rows with another label.
        ends: Hash and label of the first and the last row.
        weights: The sums of the weights, if there are any, by split.
        classes: How many classes the label has; 0 for a number.
    """

    floats: Moments
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
            self.floats.add(model_numbers(rows))

    def merge(self, part: Statistics) -> None:
        """Add the statistics of the rows that follow."""
        self.floats.merge(part.floats)
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
    normalisation uses these values. The label is also described by split. `suspicions` are about
    the rows as a whole.
    """
    features, suspected = {}, []
    for coded, place in zip(coding.features, coding.places, strict=True):
        summary = replace(totals.summary(place, train), tally=train.tallies.get(coded.name))
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
        label=_label(totals, train, label),
        rows={"read": faults.seen, **rows},
        duplicates=totals.duplicates,
        conflicts=totals.conflicts,
        bad_rows=BadRows(sum(bad.values()), bad),
        warnings=tuple(warnings),
        suspicions=tuple(suspected) or None,
        rows_left_out=dict(sorted(faults.left_out.items())) or None,
    )


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
