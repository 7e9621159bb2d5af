"""The calibration curve of a classifier, and its expected calibration error (ECE).

A model is calibrated if, of all rows with a predicted probability of 0.8, 80% are of that class.
Called by `metrics.py`, and by evaluate's plots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .predictions import ClassPredictions, weights_of

BINS = 15  # as in Guo et al. 2017, so that errors are comparable with published ones


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows by predicted probability, in 15 bins of equal width.

    For two classes, a row's probability is class 1's, and a hit is a row of class 1. For more
    classes, it is the highest probability, and a hit is a row of that class (Guo et al. 2017).

    Attributes:
        weight: (bins,) the weight of the rows.
        predicted: (bins,) the rows' mean probability; NaN without rows.
        observed: (bins,) the share of hits; NaN without rows.
    """

    weight: NDArray[np.float64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]

    @classmethod
    def of(cls, predictions: ClassPredictions) -> Calibration:
        """Bin the rows by probability."""
        sums = np.zeros((3, BINS))
        for chunk in predictions.chunks():
            probability, hits = _confidence_and_hits(chunk)
            weights = weights_of(chunk)
            bins = np.clip((probability * BINS).astype(np.int64), 0, BINS - 1)
            for row, values in enumerate((weights, weights * probability, weights * hits)):
                sums[row] += np.bincount(bins, values, BINS)
        with np.errstate(invalid="ignore"):
            return cls(sums[0], sums[1] / sums[0], sums[2] / sums[0])

    @property
    def error(self) -> float:
        """The mean distance between probability and share, by the weight of the bins."""
        used = self.weight > 0
        distance = np.abs(self.predicted - self.observed)[used]
        return float(np.dot(self.weight[used], distance) / self.weight.sum())


def _confidence_and_hits(
    chunk: ClassPredictions,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    labels = chunk.labels
    if chunk.classes == 2:
        return chunk.score(1).astype(np.float64), (labels == 1).astype(np.float64)
    right = (labels == chunk.predicted).astype(np.float64)
    return np.asarray(chunk.confidence).astype(np.float64), right
