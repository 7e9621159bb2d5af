"""What rows of a group say, so that the summaries of all groups give that of the dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.appending.condensed import Condensed
from kfp_tfjob.components.prepare_data.appending.hash_lists import Equal
from kfp_tfjob.components.prepare_data.appending.spread import Spread
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.plain import plain_of
from kfp_tfjob.components.prepare_data.shards import places_of
from kfp_tfjob.components.prepare_data.sorted_rows import Sorted
from kfp_tfjob.components.prepare_data.statistics import SPLITS, Statistics
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.components.prepare_data.weights import WeightSums, weights_of
from kfp_tfjob.trainer.coding import Coding

_LATER = 1 << 62  # rows of train before any row: no sample of rows is kept
_LABELS = 10_000


class Summary:
    """What some rows say.

    Args:
        job: A job with their kinds.
        label: The label and its classes.

    Attributes:
        spread: The values of each column.
        weights: By split.
    """

    def __init__(self, job: Job, label: Label) -> None:
        self._job, self._label = job, label
        kind = job.row_kind
        self._features = Condensed(kind["features"].shape[0], kind["dates"].shape[0])
        self._statistics = Statistics(self._features, places_of(job.known_kinds), label, _LATER)
        self.spread = Spread(kind, label.classes is None)
        self.weights = {split: WeightSums() for split in SPLITS}

    def add(self, split: int, part: Sorted) -> None:
        """Add rows of a split."""
        self._statistics.add(part.rows, split, part.labels)
        self.spread.add(split, part.rows, part.labels)
        if (weights := weights_of(part.rows)) is not None:
            classes = len(self._label.classes or ())
            self.weights[SPLITS[split]].add(weights, part.labels, classes)

    def merge(self, others: Sequence[Summary]) -> None:
        """Add the rows of others, in this order."""
        self.spread.merge([other.spread for other in others])
        for other in others:
            self._statistics.merge(other._statistics)
            for split, sums in self.weights.items():
                sums.merge(other.weights[split])

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "statistics": self._statistics.to_plain(),
            "spread": self.spread.to_plain(),
            "weights": [sums.to_plain() for sums in self.weights.values()],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], job: Job, label: Label) -> Summary:
        """Return what `to_plain` has written."""
        found = cls(job, label)
        found._statistics.restore(plain["statistics"])
        found.spread.restore(plain["spread"])
        weights = map(WeightSums.from_plain, plain["weights"])
        found.weights = dict(zip(SPLITS, weights, strict=True))
        return found

    def statistics(self, coding: Coding | None, equal: Equal) -> Statistics:
        """Return the statistics of a dataset.

        Args:
            coding: What was learned; None for a table of numbers without a gap.
            equal: The rows that are equal to others.
        """
        kinds, kind = self._job.known_kinds, self._job.row_kind
        described = self._features.whole(self.spread, kinds, kind, coding)
        found = Statistics(described, places_of(kinds), self._label)
        labels = self.spread.labels(_LABELS).astype(np.float32)
        found.restore(
            {
                **self._statistics.to_plain(),
                "features": described.to_plain(),
                "label_sample": plain_of(labels[:, None]),
                "equal": [equal.duplicates, equal.conflicts],
            }
        )
        return found
