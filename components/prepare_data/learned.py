"""Learns the coding of the columns from train: vocabularies, values for gaps, first dates.

The rows come in the order of their hashes, so the result does not depend on the order of the
source. Medians and most frequent values are those of the first 100,000 rows of train in that order
(fewer if rows are wide), which is all of train in most tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kfp_tfjob.components.prepare_data import kinds as columns_kinds
from kfp_tfjob.components.prepare_data.kinds import Feature
from kfp_tfjob.components.prepare_data.scan import Scan
from kfp_tfjob.components.prepare_data.spill import split_of
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.trainer.coding import (
    BOOLEAN,
    CATEGORY,
    DATE,
    NO_DATE,
    NUMBER,
    TEXT,
    Coded,
    Coding,
    Missing,
)

_SAMPLE_ROWS, _SAMPLE_BYTES = 100_000, 64 << 20


def in_order(part: np.ndarray, label: Label) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a file of the spill in the order of their hashes, and their labels.

    Rows with a text instead of a number as label are left out; they are bad.

    Returns:
        The rows, and class indices or numbers of shape [rows].
    """
    if label.classes is None:
        part = part[~np.isnan(part["number"])]
        labels = part["number"]
    else:
        labels = label.class_of[part["code"]]
    # By label too, so the order of rows with equal features does not depend on the input.
    order = np.lexsort((labels, part["hash"]))
    return part[order], labels[order]


def learn(scan: Scan, label: Label, options: DataOptions) -> Coding:
    """Return the coding.

    Args:
        scan: The rows; not those of a plain table.
        label: The label and its classes.
        options: The typed `data_options`.
    """
    learner = _Learner(scan)
    fractions = list(options.split.fractions.values())
    for part in scan.spill.bins(keep=True):
        rows, _ = in_order(part, label)
        learner.add(rows[: np.searchsorted(split_of(rows["hash"], fractions), 1)])
    return Coding(tuple(learner.coded(options)))


class _Learner:
    """Collects what the rows of train say."""

    def __init__(self, scan: Scan) -> None:
        self._features = scan.kinds.features
        self._texts = {name: found.texts for name, found in scan.dictionaries.items()}
        kind = scan.spill.kind
        self._wanted = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // kind.itemsize))
        self._sample: list[np.ndarray] = [np.empty(0, kind)]
        floats, codes, dates = (kind[name].shape[0] for name in ("features", "codes", "dates"))
        self._count, self._sum = np.zeros(floats, np.int64), np.zeros(floats)
        self._date_count, self._date_sum = np.zeros(dates, np.int64), [0] * dates
        self._first = np.full(dates, np.iinfo(np.int64).max)
        self._codes = [np.zeros(0, np.int64) for _ in range(codes)]

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train."""
        if self._wanted:
            part = rows[: self._wanted].copy()
            self._wanted -= len(part)
            self._sample.append(part)
        present = ~np.isnan(rows["features"])
        self._count += present.sum(0)
        self._sum += np.where(present, rows["features"], 0).sum(0, dtype=np.float64)
        dates = rows["dates"]
        there = dates != NO_DATE
        self._date_count += there.sum(0)
        # In two halves, because the sum of many dates does not fit into 64 bits.
        whole = np.where(there, dates, 0)
        high, low = (whole >> 20).sum(0), (whole & 0xFFFFF).sum(0)
        for j, (upper, lower) in enumerate(zip(high.tolist(), low.tolist(), strict=True)):
            self._date_sum[j] += (upper << 20) + lower
        if len(rows):
            last = np.iinfo(np.int64).max
            self._first = np.minimum(self._first, np.where(there, dates, last).min(0))
        for j, counts in enumerate(self._codes):
            found = np.bincount(rows["codes"][:, j], minlength=len(counts))
            found[: len(counts)] += counts
            self._codes[j] = found

    def coded(self, options: DataOptions) -> Iterator[Coded]:
        """Yield the coding of each feature."""
        sample = np.concatenate(self._sample)
        at = dict.fromkeys((NUMBER, DATE, TEXT), 0)
        for feature in self._features:
            group = {BOOLEAN: NUMBER, CATEGORY: TEXT}.get(feature.kind, feature.kind)
            j, at[group] = at[group], at[group] + 1
            if feature.kind == CATEGORY:
                texts = self._texts[feature.name]
                words = _vocabulary(texts, self._codes[j], options.min_count)
                yield Coded(feature.name, CATEGORY, dictionary=texts, vocabulary=words)
            elif feature.kind == TEXT:
                yield Coded(feature.name, TEXT, bins=options.hash_bins)
            elif feature.kind == DATE:
                dates = sample["dates"][:, j]
                mean = self._date_sum[j] // max(int(self._date_count[j]), 1)
                missing = _missing(feature, np.sort(dates[dates != NO_DATE]), mean)
                origin = int(self._first[j]) if self._date_count[j] else 0
                yield Coded(feature.name, DATE, missing, origin=origin)
            else:
                numbers = sample["features"][:, j].astype(np.float64)
                mean = float(self._sum[j] / max(int(self._count[j]), 1))
                missing = _missing(feature, np.sort(numbers[~np.isnan(numbers)]), mean)
                yield Coded(feature.name, feature.kind, missing)


def _vocabulary(texts: tuple[str, ...], rows: np.ndarray, least: int) -> tuple[str, ...]:
    """Return the texts of train that are not rare, the most frequent first."""
    counts = rows.tolist()[1:]
    found = [(-count, text) for text, count in zip(texts, counts, strict=False) if count >= least]
    return tuple(text for _, text in sorted(found))


def _missing(feature: Feature, values: np.ndarray, mean: float) -> Missing:
    """Return the rule of a column and what stands for a gap; 0 if train has only gaps.

    Args:
        feature: The column.
        values: Its values in a sample of train, sorted.
        mean: Its mean over train.
    """
    gaps = feature.gaps
    if gaps.rule in ("fail", "drop"):
        return Missing(gaps.rule, None, False)
    kind = float if feature.kind == NUMBER else int
    if gaps.rule == "constant":
        value = columns_kinds.constant_of(feature.kind, gaps.value)
    elif gaps.rule == "mean":
        value = mean
    elif not len(values):
        value = 0
    elif gaps.rule == "most_frequent":
        distinct, counts = np.unique(values, return_counts=True)
        value = distinct[counts.argmax()]  # the smallest of several
    else:
        middle = len(values) // 2
        value = values[(len(values) - 1) // 2]
        if feature.kind == NUMBER:  # the median of dates is one of them
            value = (value + values[middle]) / 2
    return Missing(gaps.rule, kind(value), gaps.indicator)
