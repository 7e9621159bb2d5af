"""The confusion matrix and its metrics: accuracy, balanced accuracy, MCC, F1, precision, recall.

Only the cells with rows are kept, so 10,000 classes need no matrix of 100 million counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.estimates import Estimate, correction, unknown, weights_of
from kfp_tfjob.judging.predictions import ClassPredictions

MOST_SHOWN_CLASSES = (
    30  # Kubeflow Pipelines draws 15 pixels per class, in metadata that must be small
)
_DENSE = 1 << 20  # cells of a table with a place for each
_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of the confusion matrix with rows, in order.

    Attributes:
        places: (cells,) their places in the flat matrix.
        labels: (cells,) their true classes.
        predicted: (cells,) their predicted classes.
        counts: (cells,) the number of their rows.
        weights: (cells,) the weight of their rows.
        weight: (cells,) its share of the weight of all rows.
        squares: (cells,) the sum of the squared weights, where all weights sum to 1.
        total: The weight of all rows.
        rows: The number of rows.
        classes: The number of classes.
    """

    places: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: _Floats
    weight: _Floats
    squares: _Floats
    total: float
    rows: int
    classes: int

    @classmethod
    def of(cls, predictions: ClassPredictions) -> Cells:
        """Count the rows of each cell."""
        flat = predictions.classes**2
        places = np.arange(flat) if flat <= _DENSE else np.empty(0, np.int64)
        sums = np.zeros((3, len(places)))  # of rows, weights and squared weights
        for chunk in predictions.chunks():
            weights = weights_of(chunk)
            each = (np.ones(chunk.rows), weights, weights**2)
            if flat <= _DENSE:
                sums += [np.bincount(chunk.cells, values, flat) for values in each]
                continue
            places, at = np.unique(np.concatenate([places, chunk.cells]), return_inverse=True)
            both = zip(sums, each, strict=True)
            sums = np.stack([np.bincount(at, np.concatenate(parts)) for parts in both])
        used = sums[0] > 0
        places, (counts, weight, squares) = places[used], sums[:, used]
        total = weight.sum() or 1.0
        labels, predicted = np.divmod(places, predictions.classes)
        return cls(
            places,
            labels,
            predicted,
            counts.astype(np.int64),
            weight,
            weight / total,
            squares / total**2,
            float(total),
            predictions.rows,
            predictions.classes,
        )

    @property
    def hit(self) -> _Floats:
        """(cells,) 1 where the predicted class is the true one."""
        return (self.labels == self.predicted).astype(np.float64)

    def by_label(self, values: _Floats) -> _Floats:
        """Return (classes,) sums by the true class."""
        return np.bincount(self.labels, values, self.classes).astype(np.float64, copy=False)

    def by_guess(self, values: _Floats) -> _Floats:
        """Return (classes,) sums by the predicted class."""
        return np.bincount(self.predicted, values, self.classes).astype(np.float64, copy=False)

    def confused(self) -> NDArray[np.int64]:
        """Return (classes,) how many rows were mistaken for another class or another one for it."""
        wrong = np.where(self.labels == self.predicted, 0, self.counts)
        return (self.by_label(wrong) + self.by_guess(wrong)).astype(np.int64)

    def support(self, chosen: NDArray[np.bool_] | None = None) -> int:
        """Return how many rows of equal weight carry as much information as these cells."""
        weight = self.weight if chosen is None else self.weight[chosen]
        squares = self.squares if chosen is None else self.squares[chosen]
        # Whole weights give a whole number but for rounding.
        return int(weight.sum() ** 2 / squares.sum() + 1e-6) if weight.sum() else 0

    def with_hidden(self, estimate: Estimate) -> Estimate:
        """Return an estimate of a mean over the classes that counts those whose rows are all alike.

        Rows that are all right, or all wrong, show no variance, though a few of them hardly tell
        the class's share. As in Agresti and Coull's interval (1998), each such class counts with
        two more right rows and two more wrong ones.
        """
        weight, hits = self.by_label(self.weight), self.by_label(self.weight * self.hit)
        present = weight > 0
        share = hits[present] / weight[present]
        rows = weight[present] ** 2 / self.by_label(self.squares)[present] + 4
        moved = np.where(share == 0, 2 / rows, np.where(share == 1, -2 / rows, 0))
        variances = np.abs(moved) * (1 - np.abs(moved)) / rows
        hidden = float(variances.sum()) / len(rows) ** 2
        return replace(estimate, hidden=hidden, shift=float(moved.mean()))

    def support_by_class(self, pull: _Floats, predicted: bool = False) -> int:
        """Return how many rows of equal weight know the variance of a metric as well as these.

        The variance comes from each class's rows, and a rare class contributes a poor estimate:
        these are the degrees of freedom of Welch and Satterthwaite, plus 1. Without any variance,
        it is the number of rows that would know the mean of the classes' shares as well.

        Args:
            pull: (cells,) how much each cell pulls the metric.
            predicted: Whether the class is the predicted one, and not the true one.
        """
        sums = self.by_guess if predicted else self.by_label
        weight = sums(self.weight)
        present = weight > 0
        rows = weight[present] ** 2 / sums(self.squares)[present]
        # Rows of weight 0 carry no information, and a pull of 1e-9 is rounding error.
        if np.abs(pull[self.weight > 0]).max(initial=0) > 1e-9:
            parts = sums(self.squares * pull**2)[present]
            below = float(np.sum(parts**2 / np.maximum(rows - 1, 1)))
            return int(parts.sum() ** 2 / below + 1 + 1e-6)
        return int(len(rows) ** 2 / np.sum(1 / rows) + 1e-6)


def condense(
    cells: Cells, classes: Sequence[str], most: int = MOST_SHOWN_CLASSES
) -> tuple[list[str], NDArray[np.int64]]:
    """Count the rows of each true and predicted class.

    Args:
        cells: The cells of a model.
        classes: The names of all classes.
        most: The largest number of classes. Of more, the most confused ones have their own place,
            and the others share the last one, `other`.

    Returns:
        The names, and a matrix of counts; a row is a true class.
    """
    names, place = list(classes), np.arange(len(classes))
    if len(classes) > most:
        chosen = np.sort(np.argsort(-np.asarray(cells.confused()), kind="stable")[: most - 1])
        place = np.full(len(classes), most - 1)
        place[chosen] = np.arange(most - 1)
        names = [*(classes[index] for index in chosen), "other"]
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (place[cells.labels], place[cells.predicted]), cells.counts)
    return names, counts


def estimate(predictions: ClassPredictions, cells: Cells, metric: str, index: int = -1) -> Estimate:
    """Estimate a metric of the confusion matrix.

    Args:
        predictions: The model's predictions.
        cells: Their confusion matrix.
        metric: `accuracy`, `balanced_accuracy`, `mcc`, `macro_f1`, or one of a class.
        index: The class of `precision/<class>`, `recall/<class>` or `f1/<class>`.
    """
    if not cells.weight.any():
        return unknown(metric, predictions)
    if index >= 0:
        return _of_class(predictions, cells, metric, index)
    if metric == "accuracy":
        value = float(np.dot(cells.weights, cells.hit)) / cells.total
        support = cells.support()
        pull = (cells.hit - value) * correction(support)
        return _estimate(predictions, cells, metric, value, pull, support, proportion=True)
    if metric == "balanced_accuracy":
        return _balanced_accuracy(predictions, cells)
    if metric == "mcc":
        return _mcc(predictions, cells)
    return _macro_f1(predictions, cells)


def _estimate(
    predictions: ClassPredictions,
    cells: Cells,
    metric: str,
    value: float,
    pull: _Floats,
    support: int,
    proportion: bool = False,
) -> Estimate:
    """Return an estimate from how much each cell pulls the metric, a mean of zero."""
    variance = float(np.dot(cells.squares, pull**2))
    dense = cells.classes**2 <= _DENSE
    table = np.zeros(cells.classes**2 if dense else 0)
    if dense:
        table[cells.places] = pull
    mean_weight = cells.total / cells.rows

    def rule(chunk: ClassPredictions) -> _Floats:
        found = table[chunk.cells] if dense else pull[np.searchsorted(cells.places, chunk.cells)]
        return found if chunk.weights is None else found * weights_of(chunk) / mean_weight

    return Estimate(metric, value, predictions, rule, support, proportion, variance)


def _of_class(predictions: ClassPredictions, cells: Cells, metric: str, index: int) -> Estimate:
    true = (cells.labels == index).astype(np.float64)
    guess = (cells.predicted == index).astype(np.float64)
    kind = metric.partition("/")[0]
    below = {"precision": guess, "recall": true, "f1": true + guess}[kind]
    above = true * guess * (2 if kind == "f1" else 1)
    if not np.dot(true, cells.weight):
        return unknown(metric, predictions)  # there are no test rows of this class
    share = float(np.dot(below, cells.weight))
    value = float(np.dot(above, cells.weight)) / share if share else 0.0
    pull = (above - value * below) / share if share else np.zeros(len(true))
    # The precision of a class that is never predicted is 0 by definition: all rows say so, but
    # none says how precise a prediction would be.
    support = cells.support(below > 0) if share else cells.support()
    if kind == "f1":
        support = cells.support(true > 0) + cells.support(guess > 0)
    found = _estimate(predictions, cells, metric, value, pull, support, kind != "f1")
    return replace(found, has_interval=bool(share))


def _macro_f1(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the F1 over the classes in the test rows, which are the same for every model."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    hits = cells.by_label(cells.weight * cells.hit)
    present, both = true > 0, true + guess
    f1 = np.divide(2 * hits, both, out=np.zeros(cells.classes), where=both > 0)
    each = np.divide(1.0, both, out=np.zeros(cells.classes), where=present) / present.sum()
    loss = f1 * each
    pull = 2 * each[cells.labels] * cells.hit - loss[cells.labels] - loss[cells.predicted]
    support = cells.support_by_class(pull)
    value = float(f1[present].mean())
    found = _estimate(predictions, cells, "macro_f1", value, pull * correction(support), support)
    return cells.with_hidden(found)


def _balanced_accuracy(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the recall over the classes in the test rows."""
    true = cells.by_label(cells.weight)
    present = true > 0
    recall = np.divide(
        cells.by_label(cells.weight * cells.hit), true, out=np.zeros(cells.classes), where=present
    )
    squares = cells.by_label(cells.squares)
    rows = np.divide(true**2, squares, out=np.zeros(cells.classes), where=present)
    scale = np.sqrt(rows / np.maximum(rows - 1, 1))
    each = np.divide(scale, true, out=np.zeros(cells.classes), where=present) / present.sum()
    pull = each[cells.labels] * (cells.hit - recall[cells.labels])
    support = cells.support_by_class(pull)
    value = float(recall[present].mean())
    found = _estimate(predictions, cells, "balanced_accuracy", value, pull, support)
    return cells.with_hidden(found)


def _mcc(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Return Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    above = float(np.dot(cells.weight, cells.hit) - np.dot(true, guess))
    of_guess, of_true = 1 - float(np.dot(guess, guess)), 1 - float(np.dot(true, true))
    below = math.sqrt(max(of_guess * of_true, 0.0))
    if of_guess < 1e-15 or of_true < 1e-15:
        pull = np.zeros(len(cells.weight))  # always one class: 0 by definition
        return _estimate(predictions, cells, "mcc", 0.0, pull, cells.support())
    value = above / below
    slope = (cells.hit - true[cells.predicted] - guess[cells.labels]) / below
    slope += value * (guess[cells.predicted] / of_guess + true[cells.labels] / of_true)
    pull = slope - np.dot(cells.weight, slope)
    # A model that predicts a class in two rows knows as little as test rows with two of a class.
    support = min(cells.support_by_class(pull, predicted) for predicted in (False, True))
    return _estimate(predictions, cells, "mcc", value, pull * correction(support), support)
