"""The confusion matrix and its metrics: accuracy, balanced accuracy, MCC, F1, precision, recall.

Only the cells with rows are kept, so 10,000 classes need no matrix of 100 million counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.chance import LabelTerms
from kfp_tfjob.judging.estimates import (
    Estimate,
    correction,
    counting,
    label_shares,
    unknown,
    weights_of,
)
from kfp_tfjob.judging.predictions import ClassPredictions

MOST_SHOWN_CLASSES = (
    30  # Kubeflow Pipelines draws 15 pixels per class, in metadata that must be small
)
_DENSE = 1 << 20  # cells of a table with a place for each
_MOST_RELABELED = 1000  # classes; a table has a place for each pair of them
_Floats = NDArray[np.float64]
_Codes = NDArray[np.int64]
Pull = Callable[[_Codes, _Codes], _Floats]


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
        scale = correction(support)

        def pull(labels: _Codes, predicted: _Codes) -> _Floats:
            return ((labels == predicted) - value) * scale

        hits = np.ones(cells.classes)
        return _estimate(predictions, cells, metric, value, pull, support, hits, proportion=True)
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
    pull: Pull,
    support: int,
    hits: _Floats,
    proportion: bool = False,
) -> Estimate:
    """Return an estimate.

    Args:
        predictions: The model's predictions.
        cells: Their confusion matrix.
        metric: The metric.
        value: Its value.
        pull: From true and predicted classes to how much such a row pulls the metric; its mean over
            all rows is zero.
        support: The number of rows behind the value.
        hits: (classes,) how much the metric rises with the share of the rows that are rightly
            predicted to be of a class, if the numbers of labels and predictions stay.
        proportion: Whether it is a share of `support` rows.
    """
    variance = float(np.dot(cells.squares, pull(cells.labels, cells.predicted) ** 2))
    mean_weight = cells.total / cells.rows

    def rule(chunk: ClassPredictions) -> _Floats:
        pulls = pull(chunk.labels.astype(np.int64), chunk.predicted.astype(np.int64))
        return pulls if chunk.weights is None else pulls * weights_of(chunk) / mean_weight

    relabeled = _relabeled(predictions, cells, hits)
    return Estimate(
        metric, value, predictions, rule, support, proportion, variance, relabeled=relabeled
    )


def _relabeled(predictions: ClassPredictions, cells: Cells, hits: _Floats) -> LabelTerms | None:
    """Return what a metric would be with other labels: only hits change it."""
    if cells.classes > _MOST_RELABELED:
        return None
    predictions = counting(predictions)
    shares, spreads = label_shares(predictions)
    counts = np.bincount(predictions.predicted, minlength=cells.classes)
    guessed = np.flatnonzero(counts)
    values = np.zeros((len(guessed), cells.classes))
    values[np.arange(len(guessed)), guessed] = hits[guessed] / predictions.rows
    counts = counts[guessed]
    if np.count_nonzero(hits) == 1:  # all other classes are one
        (index,) = np.flatnonzero(hits)
        ours = guessed == index
        counts = np.array([counts[~ours].sum(), counts[ours].sum()])
        values = np.array([[0.0, 0.0], [0.0, hits[index] / predictions.rows]])
        shares = np.array([1 - shares[index], shares[index]])
        spreads = np.array([spreads.sum() - spreads[index], spreads[index]])
    # Of a guess that names each class as often as the model. The terms would let the weights of
    # the rows with a prediction change, too.
    expected = float(hits @ (cells.by_label(cells.weight) * cells.by_guess(cells.weight)))
    return LabelTerms(shares, spreads, lambda: iter([(counts, values)]), expected)


def _of_class(predictions: ClassPredictions, cells: Cells, metric: str, index: int) -> Estimate:
    kind = metric.partition("/")[0]
    true, guess = cells.by_label(cells.weight)[index], cells.by_guess(cells.weight)[index]
    if not true:
        return unknown(metric, predictions)  # there are no test rows of this class
    weight = float({"precision": guess, "recall": true, "f1": true + guess}[kind])
    double = 2 if kind == "f1" else 1
    both = float(cells.weight[(cells.labels == index) & (cells.predicted == index)].sum())
    value = double * both / weight if weight else 0.0

    def pull(labels: _Codes, predicted: _Codes) -> _Floats:
        if not weight:
            return np.zeros(len(labels))
        ours, guesses = labels == index, predicted == index
        below = {"precision": guesses, "recall": ours, "f1": ours.astype(float) + guesses}[kind]
        return (double * (ours & guesses) - value * below) / weight

    # The precision of a class that is never predicted is 0 by definition: all rows say so, but
    # none says how precise a prediction would be.
    of_true, of_guess = cells.labels == index, cells.predicted == index
    support = {
        "precision": cells.support(of_guess) if weight else cells.support(),
        "recall": cells.support(of_true),
        "f1": cells.support(of_true) + cells.support(of_guess),
    }[kind]
    hits = np.zeros(cells.classes)
    hits[index] = double / weight if weight else 0.0
    made = _estimate(predictions, cells, metric, value, pull, support, hits, kind != "f1")
    return replace(_against_guess(made), has_interval=bool(weight))


def _macro_f1(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the F1 over the classes in the test rows, which are the same for every model."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    hits = cells.by_label(cells.weight * cells.hit)
    present, both = true > 0, true + guess
    f1 = np.divide(2 * hits, both, out=np.zeros(cells.classes), where=both > 0)
    each = np.divide(1.0, both, out=np.zeros(cells.classes), where=present) / present.sum()
    loss = f1 * each

    def pull(labels: _Codes, predicted: _Codes) -> _Floats:
        return 2 * each[labels] * (labels == predicted) - loss[labels] - loss[predicted]

    support = cells.support_by_class(pull(cells.labels, cells.predicted))
    value = float(f1[present].mean())
    scaled = _scaled(pull, correction(support))
    made = _estimate(predictions, cells, "macro_f1", value, scaled, support, 2 * each)
    return _against_guess(cells.with_hidden(made))


def _balanced_accuracy(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the recall over the classes in the test rows."""
    true = cells.by_label(cells.weight)
    present = true > 0
    recall = np.divide(
        cells.by_label(cells.weight * cells.hit), true, out=np.zeros(cells.classes), where=present
    )
    squares = cells.by_label(cells.squares)
    rows = np.divide(true**2, squares, out=np.zeros(cells.classes), where=present)
    each = np.divide(1.0, true, out=np.zeros(cells.classes), where=present) / present.sum()
    scaled = each * np.sqrt(rows / np.maximum(rows - 1, 1))

    def pull(labels: _Codes, predicted: _Codes) -> _Floats:
        return scaled[labels] * ((labels == predicted) - recall[labels])

    support = cells.support_by_class(pull(cells.labels, cells.predicted))
    value = float(recall[present].mean())
    made = _estimate(predictions, cells, "balanced_accuracy", value, pull, support, each)
    return replace(cells.with_hidden(made), of_constant=1 / int(present.sum()))


def _mcc(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Return Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    above = float(np.dot(cells.weight, cells.hit) - np.dot(true, guess))
    of_guess, of_true = 1 - float(np.dot(guess, guess)), 1 - float(np.dot(true, true))
    below = math.sqrt(max(of_guess * of_true, 0.0))
    if of_guess < 1e-15 or of_true < 1e-15:  # always one class: 0 by definition
        nothing = np.zeros(cells.classes)

        def pull(labels: _Codes, predicted: _Codes) -> _Floats:
            return np.zeros(len(labels))

        made = _estimate(predictions, cells, "mcc", 0.0, pull, cells.support(), nothing)
        return replace(made, of_constant=0.0)
    value = above / below

    def slope(labels: _Codes, predicted: _Codes) -> _Floats:
        first = ((labels == predicted) - true[predicted] - guess[labels]) / below
        return first + value * (guess[predicted] / of_guess + true[labels] / of_true)

    mean = float(np.dot(cells.weight, slope(cells.labels, cells.predicted)))

    def centered(labels: _Codes, predicted: _Codes) -> _Floats:
        return slope(labels, predicted) - mean

    pulls = centered(cells.labels, cells.predicted)
    # A model that predicts a class in two rows knows as little as test rows with two of a class.
    support = min(cells.support_by_class(pulls, predicted) for predicted in (False, True))
    hits = np.full(cells.classes, 1 / below)
    scaled = _scaled(centered, correction(support))
    made = _estimate(predictions, cells, "mcc", value, scaled, support, hits)
    # Its value by chance is 0: the shares of labels and predictions are subtracted.
    relabeled = made.relabeled and replace(made.relabeled, expected=0.0)
    return replace(made, relabeled=relabeled, of_constant=0.0)


def _against_guess(made: Estimate) -> Estimate:
    """Return an estimate that has to beat a guess, which names each class as often as the model.

    Whatever names a class more often has a higher recall of it, and a baseline that never does has
    none at all.
    """
    if made.by_chance is None:
        return made
    return replace(made, of_constant=made.by_chance[0], against_guess=True)


def _scaled(pull: Pull, scale: float) -> Pull:
    return lambda labels, predicted: pull(labels, predicted) * scale
