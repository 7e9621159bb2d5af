"""The confusion matrix and its metrics: accuracy, balanced accuracy, MCC, F1, precision, recall.

Only the cells with rows are kept, so 10,000 classes need no matrix of 100 million counts. Called by
`metrics.py`, and by evaluate's plots and artifacts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .metric_uncertainty import Estimate, small_sample_correction, unknown, with_positive_weight
from .null_distributions import LabelTerms
from .predictions import ClassPredictions, weights_of

MOST_SHOWN_CLASSES = (
    30  # Kubeflow Pipelines draws 15 pixels per class, in metadata that must be small
)
_DENSE = 1 << 20  # cells of a dense table: 24 MB for its three sums; above, only used cells
_MOST_RELABELED = 1000  # classes: the table of label terms has classes**2 floats, at most 8 MB
_Floats = NDArray[np.float64]
_Codes = NDArray[np.int64]
Influence = Callable[[_Codes, _Codes], _Floats]


@dataclass(frozen=True, eq=False)
class Cells:
    """The non-empty cells of the confusion matrix, by true class, then by predicted class.

    Attributes:
        offsets: (cells,) the cell's index in the flat matrix.
        labels: (cells,) the true class.
        predicted: (cells,) the predicted class.
        counts: (cells,) the number of rows.
        weights: (cells,) the weight of the cell's rows.
        weight: (cells,) the cell's share of the weight of all rows.
        squares: (cells,) the sum of the squared weights, where all weights sum to 1.
        total: The weight of all rows.
        rows: The number of rows.
        classes: The number of classes.
    """

    offsets: NDArray[np.int64]
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
        """Count the rows in each cell of the confusion matrix."""
        flat = predictions.classes**2
        offsets = np.arange(flat) if flat <= _DENSE else np.empty(0, np.int64)
        sums = np.zeros((3, len(offsets)))  # of rows, weights and squared weights
        for chunk in predictions.chunks():
            weights = weights_of(chunk)
            row_values = (np.ones(chunk.rows), weights, weights**2)
            if flat <= _DENSE:
                sums += [np.bincount(chunk.cells, values, flat) for values in row_values]
                continue
            offsets, cell_of_row = np.unique(
                np.concatenate([offsets, chunk.cells]), return_inverse=True
            )
            merged = zip(sums, row_values, strict=True)
            sums = np.stack([np.bincount(cell_of_row, np.concatenate(parts)) for parts in merged])
        used = sums[0] > 0
        offsets, (counts, weight, squares) = offsets[used], sums[:, used]
        total = weight.sum() or 1.0
        labels, predicted = np.divmod(offsets, predictions.classes)
        return cls(
            offsets,
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
        """Return (classes,) the misclassified rows of each class, plus rows mistaken for it."""
        wrong = np.where(self.labels == self.predicted, 0, self.counts)
        return (self.by_label(wrong) + self.by_guess(wrong)).astype(np.int64)

    def effective_sample_size(self, cell_mask: NDArray[np.bool_] | None = None) -> int:
        """Return how many equally weighted rows have as much information as these cells.

        Args:
            cell_mask: (cells,) the cells that count; None for all of them.
        """
        weight = self.weight if cell_mask is None else self.weight[cell_mask]
        squares = self.squares if cell_mask is None else self.squares[cell_mask]
        # With equal weights, the ratio is the number of rows, which rounding must not truncate.
        return int(weight.sum() ** 2 / squares.sum() + 1e-6) if weight.sum() else 0

    def with_hidden_variance(self, estimate: Estimate) -> Estimate:
        """Add the variance of classes with only right or only wrong rows to a mean over classes.

        Such rows show no variance, although a few rows hardly determine the class's share. As in
        Agresti and Coull's interval (1998), each such class counts with two more right rows and two
        more wrong rows.
        """
        weight, hits = self.by_label(self.weight), self.by_label(self.weight * self.hit)
        present = weight > 0
        share = hits[present] / weight[present]
        rows = weight[present] ** 2 / self.by_label(self.squares)[present] + 4
        shifts = np.where(share == 0, 2 / rows, np.where(share == 1, -2 / rows, 0))
        variances = np.abs(shifts) * (1 - np.abs(shifts)) / rows
        hidden_variance = float(variances.sum()) / len(rows) ** 2
        return replace(estimate, hidden_variance=hidden_variance, center_shift=float(shifts.mean()))

    def effective_sample_size_by_class(self, influence: _Floats, predicted: bool = False) -> int:
        """Return the number of equally weighted rows that estimate a metric's variance as well.

        The variance is a sum over classes, and a rare class contributes a poor estimate. The number
        is therefore the degrees of freedom of Welch and Satterthwaite, plus 1. Without any
        variance, it is the number of rows that estimate the mean of the classes' shares as well.

        Args:
            influence: (cells,) the influence of a row in each cell.
            predicted: Whether to group rows by the predicted class instead of the true class.
        """
        sums = self.by_guess if predicted else self.by_label
        weight = sums(self.weight)
        present = weight > 0
        rows = weight[present] ** 2 / sums(self.squares)[present]
        # Rows of weight 0 carry no information, and an influence of 1e-9 is a rounding error.
        if np.abs(influence[self.weight > 0]).max(initial=0) > 1e-9:
            parts = sums(self.squares * influence**2)[present]
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
        most: The largest number of classes. With more classes, the most confused ones keep their
            own row and column, and the other ones share the last one, `other`.

    Returns:
        The names, and a matrix of counts; a row is a true class.
    """
    names, position = list(classes), np.arange(len(classes))
    if len(classes) > most:
        chosen = np.sort(np.argsort(-np.asarray(cells.confused()), kind="stable")[: most - 1])
        position = np.full(len(classes), most - 1)
        position[chosen] = np.arange(most - 1)
        names = [*(classes[index] for index in chosen), "other"]
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (position[cells.labels], position[cells.predicted]), cells.counts)
    return names, counts


def estimate(predictions: ClassPredictions, cells: Cells, metric: str, index: int = -1) -> Estimate:
    """Estimate a metric of the confusion matrix.

    Args:
        predictions: The model's predictions.
        cells: Their confusion matrix.
        metric: `accuracy`, `balanced_accuracy`, `mcc`, `macro_f1`, or a metric of one class.
        index: The class of `precision/<class>`, `recall/<class>` or `f1/<class>`; -1 for a metric
            of all classes.
    """
    if not cells.weight.any():
        return unknown(metric, predictions)
    if index >= 0:
        return _class_estimate(predictions, cells, metric, index)
    if metric == "accuracy":
        value = float(np.dot(cells.weights, cells.hit)) / cells.total
        sample_size = cells.effective_sample_size()
        scale = small_sample_correction(sample_size)

        def influence(labels: _Codes, predicted: _Codes) -> _Floats:
            return ((labels == predicted) - value) * scale

        return _build_estimate(
            predictions,
            cells,
            metric,
            value,
            influence,
            sample_size,
            hit_slopes=np.ones(cells.classes),  # accuracy is the sum of the classes' shares of hits
            proportion=True,
        )
    if metric == "balanced_accuracy":
        return _balanced_accuracy(predictions, cells)
    if metric == "mcc":
        return _mcc(predictions, cells)
    return _macro_f1(predictions, cells)


def _build_estimate(
    predictions: ClassPredictions,
    cells: Cells,
    metric: str,
    value: float,
    influence: Influence,
    sample_size: int,
    hit_slopes: _Floats,
    proportion: bool = False,
) -> Estimate:
    """Return the estimate of a metric that a confusion matrix determines.

    Args:
        predictions: The model's predictions.
        cells: Their confusion matrix.
        metric: The metric.
        value: The metric's value.
        influence: From true and predicted classes to the influence of such a row; its mean over
            all rows is zero.
        sample_size: The number of rows behind the value.
        hit_slopes: (classes,) the metric's slope in the share of rows that are rightly predicted to
            be of a class, with the numbers of labels and predictions fixed.
        proportion: Whether the value is a share of `sample_size` rows.
    """
    variance = float(np.dot(cells.squares, influence(cells.labels, cells.predicted) ** 2))
    mean_weight = cells.total / cells.rows

    def row_influence(chunk: ClassPredictions) -> _Floats:
        influence_values = influence(
            chunk.labels.astype(np.int64), chunk.predicted.astype(np.int64)
        )
        return (
            influence_values
            if chunk.weights is None
            else influence_values * weights_of(chunk) / mean_weight
        )

    relabeled = _label_terms(predictions, cells, hit_slopes)
    return Estimate(
        metric,
        value,
        predictions,
        row_influence,
        sample_size,
        proportion,
        variance,
        relabeled=relabeled,
    )


def _label_terms(
    predictions: ClassPredictions, cells: Cells, hit_slopes: _Floats
) -> LabelTerms | None:
    """Return the metric as a function of the labels, which change only its hits.

    None for too many classes. The rows with one predicted class are a kind of `LabelTerms.blocks`.
    """
    if cells.classes > _MOST_RELABELED:
        return None
    predictions = with_positive_weight(predictions)
    shares, spreads = predictions.label_shares
    class_counts = np.bincount(predictions.predicted, minlength=cells.classes)
    predicted = np.flatnonzero(class_counts)
    counts = class_counts[predicted]
    terms = np.zeros((len(predicted), cells.classes))
    terms[np.arange(len(predicted)), predicted] = hit_slopes[predicted] / predictions.rows
    if np.count_nonzero(hit_slopes) == 1:
        # Only one class counts, so all others are one kind and one label. Two kinds are exact.
        (index,) = np.flatnonzero(hit_slopes)
        is_class = predicted == index
        counts = np.array([counts[~is_class].sum(), counts[is_class].sum()])
        terms = np.array([[0.0, 0.0], [0.0, hit_slopes[index] / predictions.rows]])
        shares = np.array([1 - shares[index], shares[index]])
        spreads = np.array([spreads.sum() - spreads[index], spreads[index]])
    # The value of a guess that names each class as often as the model. The mean of the terms
    # differs, because shuffled labels would also change the weights of the rows with a prediction.
    expected = float(hit_slopes @ (cells.by_label(cells.weight) * cells.by_guess(cells.weight)))
    return LabelTerms(shares, spreads, lambda: iter([(counts, terms)]), expected)


def _class_estimate(
    predictions: ClassPredictions, cells: Cells, metric: str, index: int
) -> Estimate:
    """Estimate the precision, the recall or the F1 of a class, given its index."""
    metric_name = metric.partition("/")[0]
    true, guess = cells.by_label(cells.weight)[index], cells.by_guess(cells.weight)[index]
    if not true:
        return unknown(metric, predictions)  # there are no test rows of this class
    # Each of the three metrics is factor * true positives / denominator.
    denominator = float({"precision": guess, "recall": true, "f1": true + guess}[metric_name])
    factor = 2 if metric_name == "f1" else 1
    true_positives = float(cells.weight[(cells.labels == index) & (cells.predicted == index)].sum())
    value = factor * true_positives / denominator if denominator else 0.0

    def influence(labels: _Codes, predicted: _Codes) -> _Floats:
        """Return each row's influence: the metric's derivative in the weight of such a row."""
        if not denominator:
            return np.zeros(len(labels))
        is_class, is_guess = labels == index, predicted == index
        row_denominators = {
            "precision": is_guess,
            "recall": is_class,
            "f1": is_class.astype(float) + is_guess,
        }[metric_name]
        return (factor * (is_class & is_guess) - value * row_denominators) / denominator

    # The precision of a class that is never predicted is 0 by definition. All rows show this, but
    # no row shows how precise a prediction would be.
    in_class, in_guess = cells.labels == index, cells.predicted == index
    sample_size = {
        "precision": cells.effective_sample_size(in_guess)
        if denominator
        else cells.effective_sample_size(),
        "recall": cells.effective_sample_size(in_class),
        "f1": cells.effective_sample_size(in_class) + cells.effective_sample_size(in_guess),
    }[metric_name]
    hit_slopes = np.zeros(cells.classes)
    hit_slopes[index] = factor / denominator if denominator else 0.0
    class_estimate = _build_estimate(
        predictions, cells, metric, value, influence, sample_size, hit_slopes, metric_name != "f1"
    )
    return replace(_require_beating_guess(class_estimate), has_interval=bool(denominator))


def _macro_f1(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the F1 over the classes in the test rows, which are the same for every model."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    hits = cells.by_label(cells.weight * cells.hit)
    present, denominators = true > 0, true + guess
    f1 = np.divide(2 * hits, denominators, out=np.zeros(cells.classes), where=denominators > 0)
    class_weights = (
        np.divide(1.0, denominators, out=np.zeros(cells.classes), where=present) / present.sum()
    )
    loss = f1 * class_weights

    def influence(labels: _Codes, predicted: _Codes) -> _Floats:
        return 2 * class_weights[labels] * (labels == predicted) - loss[labels] - loss[predicted]

    sample_size = cells.effective_sample_size_by_class(influence(cells.labels, cells.predicted))
    value = float(f1[present].mean())
    scaled = _scale_influence(influence, small_sample_correction(sample_size))
    macro_f1 = _build_estimate(
        predictions, cells, "macro_f1", value, scaled, sample_size, 2 * class_weights
    )
    return _require_beating_guess(cells.with_hidden_variance(macro_f1))


def _balanced_accuracy(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Average the recall over the classes in the test rows."""
    true = cells.by_label(cells.weight)
    present = true > 0
    recall = np.divide(
        cells.by_label(cells.weight * cells.hit), true, out=np.zeros(cells.classes), where=present
    )
    squares = cells.by_label(cells.squares)
    rows = np.divide(true**2, squares, out=np.zeros(cells.classes), where=present)
    class_weights = np.divide(1.0, true, out=np.zeros(cells.classes), where=present) / present.sum()
    scaled = class_weights * np.sqrt(rows / np.maximum(rows - 1, 1))

    def influence(labels: _Codes, predicted: _Codes) -> _Floats:
        return scaled[labels] * ((labels == predicted) - recall[labels])

    sample_size = cells.effective_sample_size_by_class(influence(cells.labels, cells.predicted))
    value = float(recall[present].mean())
    mean_recall = _build_estimate(
        predictions, cells, "balanced_accuracy", value, influence, sample_size, class_weights
    )
    return replace(cells.with_hidden_variance(mean_recall), of_constant=1 / int(present.sum()))


def _mcc(predictions: ClassPredictions, cells: Cells) -> Estimate:
    """Return Matthews' correlation coefficient, for any number of classes (Gorodkin 2004)."""
    true, guess = cells.by_label(cells.weight), cells.by_guess(cells.weight)
    # MCC is a correlation: a covariance, divided by the root of two variances.
    covariance = float(np.dot(cells.weight, cells.hit) - np.dot(true, guess))
    guess_variance, true_variance = 1 - float(np.dot(guess, guess)), 1 - float(np.dot(true, true))
    denominator = math.sqrt(max(guess_variance * true_variance, 0.0))
    if guess_variance < 1e-15 or true_variance < 1e-15:  # always one class: 0 by definition
        no_slopes = np.zeros(cells.classes)

        def influence(labels: _Codes, predicted: _Codes) -> _Floats:
            return np.zeros(len(labels))

        correlation = _build_estimate(
            predictions, cells, "mcc", 0.0, influence, cells.effective_sample_size(), no_slopes
        )
        return replace(correlation, of_constant=0.0)
    value = covariance / denominator

    def slope(labels: _Codes, predicted: _Codes) -> _Floats:
        by_covariance = ((labels == predicted) - true[predicted] - guess[labels]) / denominator
        by_variances = guess[predicted] / guess_variance + true[labels] / true_variance
        return by_covariance + value * by_variances

    mean = float(np.dot(cells.weight, slope(cells.labels, cells.predicted)))

    def centered(labels: _Codes, predicted: _Codes) -> _Floats:
        return slope(labels, predicted) - mean

    influence_values = centered(cells.labels, cells.predicted)
    # Two rows with a predicted class are as little evidence as two rows with a true class.
    sample_size = min(
        cells.effective_sample_size_by_class(influence_values, predicted)
        for predicted in (False, True)
    )
    hit_slopes = np.full(cells.classes, 1 / denominator)
    scaled = _scale_influence(centered, small_sample_correction(sample_size))
    correlation = _build_estimate(predictions, cells, "mcc", value, scaled, sample_size, hit_slopes)
    # Its expected value by chance is 0, because the shares of labels and predictions are
    # subtracted.
    relabeled = correlation.relabeled and replace(correlation.relabeled, expected=0.0)
    return replace(correlation, relabeled=relabeled, of_constant=0.0)


def _require_beating_guess(metric_estimate: Estimate) -> Estimate:
    """Return an estimate that must beat a guess that names each class as often as the model.

    A model that names a class more often has a higher recall of that class, and a baseline that
    never names it has a recall of 0. Neither would be a fair reference.
    """
    if metric_estimate.by_chance is None:
        return metric_estimate
    return replace(metric_estimate, of_constant=metric_estimate.by_chance[0], against_guess=True)


def _scale_influence(influence: Influence, scale: float) -> Influence:
    return lambda labels, predicted: influence(labels, predicted) * scale
