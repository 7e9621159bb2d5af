"""Whether predicted probabilities come true: the calibration curve and its expected error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.estimates import weights_of
from kfp_tfjob.judging.predictions import ClassPredictions

BINS = 15


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows by predicted probability, in 15 bins of equal width.

    Of two classes, it is the probability of class 1 and whether the row is of class 1; of more, the
    highest probability and whether that class is the true one (Guo et al. 2017).

    Attributes:
        weight: (bins,) the weight of the rows.
        predicted: (bins,) their mean probability; NaN without rows.
        observed: (bins,) the share for which it came true; NaN without rows.
    """

    weight: NDArray[np.float64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]

    @classmethod
    def of(cls, predictions: ClassPredictions) -> Calibration:
        """Count the rows of each bin."""
        sums = np.zeros((3, BINS))
        for chunk in predictions.chunks():
            probability, true = _of_rows(chunk)
            weights = weights_of(chunk)
            places = np.clip((probability * BINS).astype(np.int64), 0, BINS - 1)
            for row, values in enumerate((weights, weights * probability, weights * true)):
                sums[row] += np.bincount(places, values, BINS)
        with np.errstate(invalid="ignore"):
            return cls(sums[0], sums[1] / sums[0], sums[2] / sums[0])

    @property
    def error(self) -> float:
        """The mean distance between probability and share, by the weight of the bins."""
        used = self.weight > 0
        distance = np.abs(self.predicted - self.observed)[used]
        return float(np.dot(self.weight[used], distance) / self.weight.sum())


def _of_rows(chunk: ClassPredictions) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    labels = chunk.labels
    if chunk.classes == 2:
        return chunk.score(1).astype(np.float64), (labels == 1).astype(np.float64)
    right = (labels == chunk.predicted).astype(np.float64)
    return np.asarray(chunk.confidence).astype(np.float64), right
