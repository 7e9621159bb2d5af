"""Collects a model's predictions for the test rows by batch, and keeps them by row.

Every metric is computed from these rows at the end, so no result depends on the batch size. Two
compared models predict the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The AUC needs the scores of every class: 4 bytes per row and class. With more classes than this,
# only the data for the other metrics is kept, and there is no AUC.
MOST_SCORED_CLASSES = 30
# The float32 epsilon, at which scikit-learn clips too: log(0) would outweigh all other rows.
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class ClassPredictions:
    """A classifier on the test rows.

    Attributes:
        labels: (rows,) int32, the true class of each row.
        predicted: (rows,) int32, the most probable class; the first one in a tie.
        true_probability: (rows,) float32, the probability given to the true class; NaN where any
            probability of the row is not a number.
        scores: float32, (rows, 1) with the probability of class 1 for two classes,
            (rows, classes) for up to 30 classes, (rows, 0) for more.
        classes: The number of classes.
    """

    labels: NDArray[np.int32]
    predicted: NDArray[np.int32]
    true_probability: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: int

    @classmethod
    def of(cls, labels: ArrayLike, probabilities: ArrayLike) -> ClassPredictions:
        """Build from (rows,) labels and (rows, classes) probabilities."""
        labels = np.asarray(labels, np.int32)
        probabilities = np.asarray(probabilities, np.float32)
        classes = probabilities.shape[1]
        if classes == 2:
            scores = probabilities[:, 1:]
        else:
            scores = probabilities[:, : classes if classes <= MOST_SCORED_CLASSES else 0]
        true = probabilities[np.arange(len(labels)), labels]
        true[~np.isfinite(probabilities).all(axis=1)] = np.nan
        return cls(
            labels,
            probabilities.argmax(axis=1).astype(np.int32),
            true,
            scores.copy(),
            classes,
        )

    @classmethod
    def join(cls, parts: Sequence[ClassPredictions]) -> ClassPredictions:
        """Concatenate batches."""
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.predicted for part in parts]),
            np.concatenate([part.true_probability for part in parts]),
            np.concatenate([part.scores for part in parts]),
            parts[0].classes,
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    @property
    def finite(self) -> bool:
        """Whether every probability is finite."""
        return bool(np.isfinite(self.true_probability).all())

    @property
    def losses(self) -> NDArray[np.float64]:
        """(rows,) the log loss of each row, in nats."""
        probability = self.true_probability.astype(np.float64)
        return -np.log(np.clip(probability, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY))

    def scored_classes(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (class, scores) for every class with a curve; of two classes, only class 1."""
        first = 1 if self.classes == 2 else 0
        for column in range(self.scores.shape[1]):
            yield first + column, self.scores[:, column]

    def confusion(self) -> NDArray[np.int64]:
        """Return the (classes, classes) counts; a row is a true class, a column a predicted one."""
        cells = self.labels.astype(np.int64) * self.classes + self.predicted
        return np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)


@dataclass(frozen=True)
class ValuePredictions:
    """A regression on the test rows.

    Attributes:
        labels: (rows,) float32, the true values.
        values: (rows,) float32, the predicted values.
    """

    labels: NDArray[np.float32]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, labels: ArrayLike, values: ArrayLike) -> ValuePredictions:
        """Build from (rows,) labels and (rows,) values."""
        return cls(np.asarray(labels, np.float32), np.asarray(values, np.float32))

    @classmethod
    def join(cls, parts: Sequence[ValuePredictions]) -> ValuePredictions:
        """Concatenate batches."""
        return cls(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    @property
    def finite(self) -> bool:
        """Whether every predicted value is finite."""
        return bool(np.isfinite(self.values).all())

    @property
    def errors(self) -> NDArray[np.float64]:
        """(rows,) predicted minus true."""
        return self.values.astype(np.float64) - self.labels


Predictions = ClassPredictions | ValuePredictions


def constant_classifier(labels: ArrayLike, counts: ArrayLike) -> ClassPredictions:
    """Return the trivial baseline of a classification: the class shares of the training rows.

    Args:
        labels: (rows,) the true classes of the test rows.
        counts: (classes,) training rows of each class.
    """
    shares = np.asarray(counts, np.float64)
    shares = (shares / shares.sum()).astype(np.float32)
    labels = np.asarray(labels, np.int32)
    return ClassPredictions.of(labels, np.broadcast_to(shares, (len(labels), len(shares))))


def constant_regression(labels: ArrayLike, mean: float) -> ValuePredictions:
    """Return the trivial baseline of a regression: the mean of the training rows."""
    labels = np.asarray(labels, np.float32)
    return ValuePredictions.of(labels, np.full(len(labels), mean, np.float32))
