"""Computes statistics of the written rows: features, class counts, duplicates, conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.column_statistics import FeatureStatistics, some
from kfp_tfjob.components.prepare_data.moments import Moments, Sample
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.features.types.base import bars_of

SPLITS = ("train", "validation", "test")
_MOST_WARNED = 10  # names in one warning


class Statistics:
    """The content of statistics.json.

    Args:
        features: Describes the features.
        label: The label.
        before: Rows of train that come before the first one.
    """

    def __init__(
        self,
        features: FeatureStatistics,
        label: Label,
        before: int = 0,
    ) -> None:
        self._features, self._label = features, label
        self._label_sample = Sample([(np.float32, 1)], before)
        self._ends: list[tuple[int, float]] = []  # hash and label of the first and last row
        self._labels = [Moments(1) for _ in SPLITS]
        self._classes = np.zeros((3, len(label.classes or ())), np.int64)
        self._duplicates = self._conflicts = 0

    def add(self, rows: np.ndarray, split: int, labels: np.ndarray) -> None:
        """Add rows of a split in the order of hash and label, with their labels."""
        if not len(rows):
            return
        hashes = rows["hash"]
        same = hashes[1:] == hashes[:-1]
        self._duplicates += int(same.sum())
        self._conflicts += int((same & (labels[1:] != labels[:-1])).sum())
        self._follow([(int(hashes[i]), labels[i].item()) for i in (0, -1)])
        if self._label.classes is None:
            self._labels[split].add(labels[:, None])
        else:
            self._classes[split] += np.bincount(labels, minlength=len(self._label.classes))
        if split == 0:
            self._features.add(rows)
            self._label_sample.add(labels[:, None])

    def merge(self, later: Statistics) -> None:
        """Add the statistics of the rows that follow."""
        self._features.merge(later._features)
        self._label_sample.merge(later._label_sample)
        for mine, others in zip(self._labels, later._labels, strict=True):
            mine.merge(others)
        self._classes += later._classes
        self._duplicates += later._duplicates
        self._conflicts += later._conflicts
        self._follow(later._ends)

    def to_plain(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON values."""
        return {
            "features": self._features.to_plain(),
            "label_sample": self._label_sample.to_plain(),
            "labels": [moments.to_plain() for moments in self._labels],
            "classes": plain_of(self._classes),
            "equal": [self._duplicates, self._conflicts],
            "ends": [list(end) for end in self._ends],
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Become what `to_plain` has written."""
        self._features.restore(plain["features"])
        self._label_sample.restore(plain["label_sample"])
        self._labels = [Moments.from_plain(item) for item in plain["labels"]]
        self._classes = array_of(plain["classes"])
        self._duplicates, self._conflicts = plain["equal"]
        self._ends = [(end[0], end[1]) for end in plain["ends"]]

    def _follow(self, ends: list[tuple[int, float]]) -> None:
        """Compare the last row so far with the first one of those that follow."""
        if self._ends and ends:
            (before, label), (after, other) = self._ends[1], ends[0]
            self._duplicates += before == after
            self._conflicts += before == after and label != other
        if ends:
            self._ends = [(self._ends or ends)[0], ends[1]]

    def to_dict(
        self,
        read: int,
        bad: dict[str, int],
        rows: dict[str, int],
        left_out: Mapping[str, int],
    ) -> dict[str, Any]:
        """Return the content of statistics.json.

        Args:
            read: Rows of the source, good or bad.
            bad: Bad rows by rule.
            rows: Rows by split.
            left_out: Rows that a gap leaves out, by column.

        Returns:
            Plain values, all finite. Features and a numeric label are described over train,
            because normalisation uses these values. The label is also described by split.
        """
        described = self._features.described()
        body = {
            **described,
            "label": self._label_dict(),
            "rows": {"read": read, **rows},
            "duplicates": self._duplicates,
            "conflicts": self._conflicts,
            "bad_rows": {"dropped": sum(bad.values()), "rules": bad},
            "warnings": self._warnings(described["features"]),
        }
        if left_out:
            body["rows_left_out"] = dict(sorted(left_out.items()))
        return body

    def _label_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self._label.name}
        if self._label.classes is not None:
            body["counts"] = {
                split: dict(zip(self._label.classes, self._classes[i].tolist(), strict=True))
                for i, split in enumerate(SPLITS)
            }
            return body
        train = self._labels[0].column(0)
        (labels,) = self._label_sample.arrays()
        bars = bars_of(labels[:, 0].astype(np.float64), train["min"], train["max"])
        body |= train | {"histogram": bars}
        for moments, split in zip(self._labels, SPLITS, strict=True):
            body[split] = moments.column(0)
        return body

    def _warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        found = []
        found += self._features.warnings(features)
        for i, split in enumerate(SPLITS[1:], 1):
            lacking = [
                name
                for name, count in zip(self._label.classes or (), self._classes[i], strict=True)
                if not count
            ]
            if lacking:
                found.append(f"{split} has no row of these classes: {some(lacking)}")
        if self._conflicts:
            found.append(
                "rows with the features of an earlier row and a different label:"
                f" {self._conflicts:,}"
            )
        return found
