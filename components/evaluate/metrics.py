"""Computes metrics and their uncertainty, with numpy alone.

Each metric is estimated together with its influence values: how much each row moves it. Their mean
is zero, and sqrt(sum of squares) / rows is the standard error. For the difference between two
models on the same rows, subtract their influence values. So one rule gives every interval and every
paired comparison. For the AUC, it is exactly DeLong's (DeLong, DeLong and Clarke-Pearson 1988).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfp_tfjob.components.evaluate.predictions import (
    ClassPredictions,
    Predictions,
    ValuePredictions,
)
from kfp_tfjob.options.metric_names import CLASSIFICATION, PER_CLASS, REGRESSION

# Kubeflow Pipelines draws 15 pixels per class, and a task's metadata must stay small.
MOST_SHOWN_CLASSES = 30
_RANGES = {"log_loss": (0.0, math.inf), "rmse": (0.0, math.inf), "mae": (0.0, math.inf)}
_RANGES["r2"] = (-math.inf, 1.0)


@dataclass(frozen=True)
class Estimate:
    """A metric of one model on the test rows.

    Attributes:
        metric: Its name.
        value: The value; NaN where the rows do not define it.
        influence: (rows,) float64, scaled so that sqrt(sum of squares) / rows is the standard
            error of the value; empty when the value is NaN.
        support: The number of rows behind the value; for the AUC, those of the smaller class.
        proportion: Whether it is a share of `support` rows; a share gets Wilson's interval.
    """

    metric: str
    value: float
    influence: NDArray[np.float64]
    support: int
    proportion: bool = False

    @property
    def standard_error(self) -> float:
        """The standard error of the value."""
        return root_sum_of_squares(self.influence) / max(len(self.influence), 1)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval, clipped to the metric's range; NaN where unknown."""
        if not math.isfinite(self.value) or self.support < 2:
            return math.nan, math.nan
        level = (1 + confidence) / 2
        if self.proportion:
            return _wilson(self.value, self.support, NormalDist().inv_cdf(level))
        lowest, highest = _RANGES.get(self.metric, (0.0, 1.0))
        reach = t_quantile(level, self.support - 1) * self.standard_error
        return max(self.value - reach, lowest), min(self.value + reach, highest)


@dataclass(frozen=True)
class Measured:
    """A metric for display: its value and its two-sided interval, NaN where unknown."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, item: Estimate, confidence: float) -> Measured:
        """Keep the parts of an estimate that are shown."""
        return cls(item.value, *item.interval(confidence))


def names(predictions: Predictions) -> tuple[str, ...]:
    """Return the metrics of a task, the most important first."""
    return CLASSIFICATION if isinstance(predictions, ClassPredictions) else REGRESSION


def estimate(predictions: Predictions, metric: str, classes: list[str] | None = None) -> Estimate:
    """Estimate one metric.

    Args:
        predictions: The model's predictions.
        metric: A name from CLASSIFICATION or REGRESSION, or `precision/<class>`, `recall/<class>`,
            `f1/<class>`.
        classes: The names of the classes, for per-class metrics.

    Returns:
        The estimate. Its value is NaN if the metric does not belong to the task, a prediction is
        not finite, or the test rows do not define the metric (an AUC with only one class).
    """
    if predictions.rows == 0 or not predictions.finite:
        return _unknown(metric)
    if isinstance(predictions, ValuePredictions):
        return _regression(predictions, metric)
    kind, _, name = metric.partition("/")
    if kind in PER_CLASS and classes and name in classes:
        return _of_class(predictions, metric, classes.index(name))
    return _classification(predictions, metric)


def summary(
    predictions: Predictions,
    confidence: float,
    classes: list[str] | None = None,
    each_class: bool = False,
) -> dict[str, Measured]:
    """Measure every metric of the task.

    Args:
        predictions: The model's predictions.
        confidence: The confidence of the two-sided intervals, for instance 0.95.
        classes: The names of the classes.
        each_class: Whether to include precision, recall and F1 of every class.
    """
    wanted = list(names(predictions))
    if each_class and classes:
        wanted += [f"{kind}/{name}" for name in classes for kind in PER_CLASS]
    return {
        metric: Measured.of(estimate(predictions, metric, classes), confidence) for metric in wanted
    }


def roc_curve(
    labels: ArrayLike, scores: ArrayLike, points: int = 100
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (false positive rate, true positive rate, threshold), each (at most `points`,).

    The points are thinned evenly along the curve. The first threshold is the highest score plus 1,
    because Kubeflow Pipelines cannot store infinity.
    """
    positive = np.asarray(labels).astype(bool)
    scores = np.asarray(scores, np.float64)
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    true = np.cumsum(positive)[last]
    false = 1 + last - true
    tpr = np.append(0.0, true / max(true[-1], 1))
    fpr = np.append(0.0, false / max(false[-1], 1))
    thresholds = np.append(scores[0] + 1, scores[last])
    if len(fpr) > points:
        along = fpr + tpr  # grows from 0 to 2 along the curve
        wanted = np.searchsorted(along, np.linspace(0, along[-1], points))
        keep = np.unique(np.clip(wanted, 0, len(fpr) - 1))
        fpr, tpr, thresholds = fpr[keep], tpr[keep], thresholds[keep]
    return fpr, tpr, thresholds


def condense(
    matrix: NDArray[np.int64], classes: list[str], most: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Reduce a confusion matrix to at most `most` classes: the most confused ones and `other`.

    Args:
        matrix: (classes, classes) counts; rows are true classes.
        classes: The names of the classes.
        most: The largest number of classes to keep, including `other`.
    """
    if len(classes) <= most:
        return list(classes), matrix
    wrong = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * np.diag(matrix)
    chosen = np.sort(np.argsort(-wrong, kind="stable")[: most - 1])
    place = np.full(len(classes), most - 1)
    place[chosen] = np.arange(most - 1)
    small = np.zeros((most, most), np.int64)
    np.add.at(small, (place[:, None], place[None, :]), matrix)
    return [classes[index] for index in chosen] + ["other"], small


def t_quantile(level: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution (Abramowitz and Stegun 26.7.5).

    The error is below 0.5 % for 4 or more degrees of freedom.
    """
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def root_sum_of_squares(values: NDArray[np.float64]) -> float:
    """Return the length of a vector."""
    return math.sqrt(float(np.dot(values, values)))


def _classification(predictions: ClassPredictions, metric: str) -> Estimate:
    if metric == "accuracy":
        right = (predictions.labels == predictions.predicted).astype(np.float64)
        return _mean(metric, right, proportion=True)
    if metric == "log_loss":
        return _mean(metric, predictions.losses)
    if metric == "macro_f1":
        return _macro_f1(predictions)
    if metric == "auc":
        return _auc(predictions)
    return _unknown(metric)


def _regression(predictions: ValuePredictions, metric: str) -> Estimate:
    errors = predictions.errors
    if metric == "mae":
        return _mean(metric, np.abs(errors))
    if metric not in ("rmse", "r2"):
        return _unknown(metric)
    square = _mean("mse", errors**2)
    if metric == "rmse":
        rmse = math.sqrt(square.value)
        slope = 1 / (2 * rmse) if rmse else 0.0
        return Estimate(metric, rmse, square.influence * slope, square.support)
    labels = predictions.labels.astype(np.float64)
    spread = _mean("variance", (labels - labels.mean()) ** 2)
    if spread.value == 0:
        return _unknown(metric)
    share = square.value / spread.value
    influence = (share * spread.influence - square.influence) / spread.value
    return Estimate(metric, 1 - share, influence, square.support)


def _of_class(predictions: ClassPredictions, metric: str, index: int) -> Estimate:
    true = (predictions.labels == index).astype(np.float64)
    predicted = (predictions.predicted == index).astype(np.float64)
    kind = metric.partition("/")[0]
    below = {"precision": predicted, "recall": true, "f1": true + predicted}[kind]
    above = true * predicted * (2 if kind == "f1" else 1)
    if not true.any():
        return _unknown(metric)  # there are no test rows of this class
    share = below.mean()
    value = above.sum() / below.sum() if share else 0.0
    influence = (above - value * below) / share if share else np.zeros(len(true))
    return Estimate(metric, float(value), influence, int(below.sum()), kind != "f1")


def _macro_f1(predictions: ClassPredictions) -> Estimate:
    """Average the F1 over the classes in the test rows, which are the same for every model."""
    matrix, rows = predictions.confusion(), predictions.rows
    hits, true, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    present = true > 0
    both = (true + predicted) / rows
    f1 = np.divide(2 * hits / rows, both, out=np.zeros(len(hits)), where=both > 0)
    weight = np.divide(1.0, both, out=np.zeros(len(hits)), where=present) / present.sum()
    labels, guesses = predictions.labels, predictions.predicted
    pull = f1 * weight
    influence = 2 * weight[labels] * (labels == guesses) - pull[labels] - pull[guesses]
    return Estimate("macro_f1", float(f1[present].mean()), influence, rows)


def _auc(predictions: ClassPredictions) -> Estimate:
    """Return the AUC of class 1, or the mean one-versus-rest AUC of the classes present."""
    found = []
    for index, scores in predictions.scored_classes():
        positive = predictions.labels == index
        if positive.any() and not positive.all():
            found.append(_one_auc(scores, positive))
    if not found:
        return _unknown("auc")
    influence = np.mean([influence for _, influence, _ in found], axis=0)
    support = min(support for _, _, support in found)
    return Estimate("auc", float(np.mean([value for value, _, _ in found])), influence, support)


def _one_auc(
    scores: NDArray[np.float32], positive: NDArray[np.bool_]
) -> tuple[float, NDArray[np.float64], int]:
    """Return the AUC, its influence values and the rows of the smaller class.

    A row's placement is the share of the other class that it is ranked correctly against; a tie
    counts half. The AUC is the mean placement.
    """
    high, low = scores[positive], scores[~positive]
    above = _below(high, np.sort(low))
    below = 1 - _below(low, np.sort(high))
    value, rows = float(above.mean()), len(scores)
    influence = np.empty(rows)
    for mask, placement in ((positive, above), (~positive, below)):
        count = len(placement)
        scale = rows / count * math.sqrt(count / max(count - 1, 1))
        influence[mask] = scale * (placement - value)
    return value, influence, min(len(high), len(low))


def _below(values: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return for each value the share of the sorted `others` below it; ties count half."""
    ranks = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
    return ranks / (2 * len(others))


def _mean(metric: str, values: NDArray[np.float64], proportion: bool = False) -> Estimate:
    count, value = len(values), float(values.mean())
    influence = (values - value) * math.sqrt(count / max(count - 1, 1))
    return Estimate(metric, value, influence, count, proportion)


def _unknown(metric: str) -> Estimate:
    return Estimate(metric, math.nan, np.empty(0), 0)


def _wilson(share: float, count: int, z: float) -> tuple[float, float]:
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the finite values; metadata of Kubeflow Pipelines cannot hold others."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
