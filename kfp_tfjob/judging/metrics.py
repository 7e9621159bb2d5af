"""All metrics of one model: finds the module that computes a metric, and caches its estimate.

Means of a value for each row, such as the log loss, are computed here; metrics of the confusion
matrix in confusion_metrics.py, metrics of ranks in ranking_metrics.py. Each estimate comes with its
uncertainty (metric_uncertainty.py). Created by `judge` for each model; read by the gate, the
verdict and the report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.options.metric_names import CLASSIFICATION, PER_CLASS, REGRESSION, labelled, top_k

from . import confusion_metrics, ranking_metrics
from .calibration import Calibration
from .confusion_metrics import MOST_SHOWN_CLASSES, Cells
from .metric_uncertainty import Estimate, Measured, mean, unknown, with_positive_weight
from .null_distributions import LabelTerms
from .predictions import (
    CHUNK,
    ClassPredictions,
    Predictions,
    ValuePredictions,
    log_losses,
    weights_of,
)
from .ranking_metrics import Curve, curves_of

_OF_CELLS = ("accuracy", "balanced_accuracy", "macro_f1", "mcc")
_OF_CURVES = ("auc", "average_precision")
_SHOWN_TOP = 5  # as ImageNet reports it; with fewer classes, every row would be a hit
_LABEL_GROUPS = 64  # labels per row that a shuffle of a regression considers: 512 bytes a row
_Floats = NDArray[np.float64]


class Measures:
    """One model's metrics; intermediate results such as the confusion matrix are cached.

    Args:
        predictions: The model's predictions.
        classes: The names of the classes, for per-class metrics.
        confidence: The confidence of the two-sided intervals, for example 0.95.
        numbers: The user's own metrics that are one number.
    """

    def __init__(
        self,
        predictions: Predictions,
        classes: list[str] | None = None,
        confidence: float = 0.95,
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        self.predictions, self.classes = predictions, classes
        self.confidence, self.numbers = confidence, numbers or {}
        self._estimates: dict[str, Estimate] = {}

    @cached_property
    def cells(self) -> Cells:
        """The confusion matrix of a classification."""
        assert isinstance(self.predictions, ClassPredictions)
        return Cells.of(self.predictions)

    @cached_property
    def curves(self) -> list[Curve]:
        """The curve of every class with scores; for two classes, only the curve of class 1."""
        assert isinstance(self.predictions, ClassPredictions)
        return curves_of(self.predictions)

    @cached_property
    def calibration(self) -> Calibration:
        """Whether the probabilities of a classification come true."""
        assert isinstance(self.predictions, ClassPredictions)
        return Calibration.of(self.predictions)

    @property
    def names(self) -> tuple[str, ...]:
        """The task's metrics, the most important first, then the user's metrics."""
        own = (*self.predictions.own, *self.numbers)
        if not isinstance(self.predictions, ClassPredictions):
            return REGRESSION + own
        has_top = self.predictions.classes > _SHOWN_TOP
        top = (f"top_{_SHOWN_TOP}_accuracy",) if has_top else ()
        return CLASSIFICATION + top + own

    @property
    def exact(self) -> bool:
        """Whether the AUC and the average precision come from all scores and not from bins."""
        if not isinstance(self.predictions, ClassPredictions) or not self.predictions.finite:
            return True
        return all(curve.exact for curve in self.curves)

    def label(self, metric: str) -> str:
        """Return a metric's display name, with the class if it describes one of two classes."""
        return labelled(metric, self.classes or ())

    def estimate(self, metric: str) -> Estimate:
        """Estimate one metric.

        Args:
            metric: A name from CLASSIFICATION or REGRESSION, `top_<k>_accuracy`,
                `precision/<class>`, `recall/<class>`, `f1/<class>`, or a user metric with a value
                for each row.

        Returns:
            The estimate. Its value is NaN if the metric does not belong to the task, a prediction
            is not finite, or the test rows do not define the metric (an AUC with only one class).
        """
        if metric not in self._estimates:
            self._estimates[metric] = self._estimate(metric).by_group()
        return self._estimates[metric]

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """Every metric of the task, with its interval."""
        return {name: Measured.of(self.estimate(name), self.confidence) for name in self.names}

    def settle(self, metric: str, interval: tuple[float, float]) -> None:
        """Replace a metric's displayed interval by one from a comparison, which is more precise."""
        for displayed in (self.measured, self.class_metrics):
            if metric in displayed:
                displayed[metric] = Measured(displayed[metric].value, *interval)

    @cached_property
    def class_metrics(self) -> dict[str, Measured]:
        """Precision, recall and F1 of each class, up to 30 classes."""
        classes = self.classes or []
        displayed = classes if len(classes) <= MOST_SHOWN_CLASSES else []
        names = [f"{kind}/{name}" for name in displayed for kind in PER_CLASS]
        return {name: Measured.of(self.estimate(name), self.confidence) for name in names}

    def _estimate(self, metric: str) -> Estimate:
        predictions = self.predictions
        if predictions.rows == 0 or not predictions.finite:
            return unknown(metric, predictions)
        if metric in predictions.own:
            return _user_metric(predictions, metric)
        if metric in self.numbers:
            return Estimate(metric, self.numbers[metric], predictions, None, predictions.rows)
        if isinstance(predictions, ValuePredictions):
            return _regression(predictions, metric)
        kind, _, name = metric.partition("/")
        if kind in PER_CLASS and self.classes and name in self.classes:
            index = self.classes.index(name)
            return confusion_metrics.estimate(predictions, self.cells, metric, index)
        if metric in _OF_CELLS:
            return confusion_metrics.estimate(predictions, self.cells, metric)
        if metric in _OF_CURVES:
            return ranking_metrics.estimate(predictions, self.curves, metric)
        if metric == "log_loss":
            relabeled = _terms_by_class(predictions, _losses_by_label)
            return mean(metric, predictions, lambda chunk: chunk.losses, relabeled=relabeled)
        if metric == "brier":
            relabeled = _terms_by_class(predictions, _square_errors_by_label)
            return mean(metric, predictions, lambda chunk: chunk.square_errors, relabeled=relabeled)
        if metric == "ece":
            return Estimate(metric, self.calibration.error, predictions, None, predictions.rows)
        if top := top_k(metric):
            return _top_k_accuracy(predictions, metric, top)
        return unknown(metric, predictions)


def _user_metric(predictions: Predictions, metric: str) -> Estimate:
    share = predictions.own[metric].dtype == bool
    return mean(metric, predictions, lambda chunk: chunk.own_values(metric), proportion=share)


def _top_k_accuracy(predictions: ClassPredictions, metric: str, k: int) -> Estimate:
    if predictions.rank is None:  # of two classes, the true one is always among the first k
        return mean(metric, predictions, lambda chunk: np.ones(chunk.rows), proportion=True)

    def hits(chunk: ClassPredictions) -> NDArray[np.float64]:
        return (np.asarray(chunk.rank) < k).astype(np.float64)

    return mean(metric, predictions, hits, proportion=True)


def _terms_by_class(
    predictions: ClassPredictions, by_label: Callable[[ClassPredictions], _Floats]
) -> LabelTerms | None:
    """Return what each row would add to a mean metric with each label; None without all scores.

    Args:
        predictions: The model's predictions.
        by_label: Computes the (rows, classes) values of a chunk, one for each possible label.
    """
    if predictions.scores.shape[1] == 0:
        return None  # only the probabilities of the true classes are kept
    predictions = with_positive_weight(predictions)
    shares, spreads = predictions.label_shares

    def blocks() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        for chunk in predictions.chunks():
            yield np.ones(chunk.rows, np.int64), by_label(chunk) / predictions.rows

    return LabelTerms(shares, spreads, blocks)


def _probabilities(chunk: ClassPredictions) -> _Floats:
    scores = chunk.scores.astype(np.float64)
    return np.concatenate([1 - scores, scores], axis=1) if chunk.classes == 2 else scores


def _losses_by_label(chunk: ClassPredictions) -> _Floats:
    return log_losses(_probabilities(chunk))


def _square_errors_by_label(chunk: ClassPredictions) -> _Floats:
    probabilities = _probabilities(chunk)
    if chunk.classes == 2:
        return (1 - probabilities) ** 2
    return np.asarray(chunk.squares)[:, None] + 1.0 - 2 * probabilities


def _regression(predictions: ValuePredictions, metric: str) -> Estimate:
    if metric == "mae":
        relabeled = _terms_by_value(predictions, np.abs)
        return mean(metric, predictions, lambda chunk: np.abs(chunk.errors), relabeled=relabeled)
    if metric == "mean_error":
        return mean(metric, predictions, lambda chunk: chunk.errors)
    if metric not in ("rmse", "r2"):
        return unknown(metric, predictions)
    square = mean(
        "mse",
        predictions,
        lambda chunk: chunk.errors**2,
        relabeled=_terms_by_value(predictions, np.square),
    )
    if metric == "rmse":
        rmse = math.sqrt(square.value)
        return _transform_mse(square, metric, rmse, 1 / (2 * rmse) if rmse else 0.0)
    return _r2(predictions, square)


def _transform_mse(square: Estimate, metric: str, value: float, slope: float) -> Estimate:
    """Return the estimate of a differentiable function of the mean squared error.

    Args:
        square: The mean squared error.
        metric: The function's name.
        value: The function's value.
        slope: The function's derivative at the mean squared error.
    """
    influence, relabeled = square.influence, square.relabeled
    if not slope:  # the root cannot be differentiated at 0
        relabeled = None
    if relabeled is not None:
        blocks, mean_square = relabeled.blocks, relabeled.expected_value
        relabeled = replace(
            relabeled,
            blocks=lambda: ((counts, slope * values) for counts, values in blocks()),
            expected=value + slope * (mean_square - square.value),
        )
    return replace(
        square,
        metric=metric,
        value=value,
        influence=None if influence is None else lambda chunk: slope * influence(chunk),
        relabeled=relabeled,
    )


def _terms_by_value(
    predictions: ValuePredictions, loss: Callable[[_Floats], _Floats]
) -> LabelTerms | None:
    """Return the mean loss as a function of the labels, which are grouped by quantiles.

    None if all rows have the weight 0.
    """
    predictions = with_positive_weight(predictions)
    if not predictions.rows:
        return None
    labels, shares, spreads = _label_groups(predictions)

    def blocks() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        for chunk in predictions.chunks(CHUNK // _LABEL_GROUPS * 8):
            errors = chunk.values.astype(np.float64)[:, None] - labels
            yield np.ones(chunk.rows, np.int64), loss(errors) / predictions.rows

    return LabelTerms(shares, spreads, blocks)


def _label_groups(predictions: ValuePredictions) -> tuple[_Floats, _Floats, _Floats]:
    """Return (groups,) labels, and their shares of the weight and of the squared weights.

    Equal labels of all rows are one group, so that no shuffle changes a metric.
    """
    labels, weights = predictions.labels.astype(np.float64), weights_of(predictions)
    order = np.argsort(labels, kind="stable")
    groups = _LABEL_GROUPS if math.isnan(predictions.only_label) else 1
    starts = np.unique(np.linspace(0, len(labels), groups, endpoint=False).astype(np.int64))
    weight = np.add.reduceat(weights[order], starts)
    squares = np.add.reduceat(weights[order] ** 2, starts)
    sums = np.add.reduceat((weights * labels)[order], starts)
    total = weight.sum()
    return sums / weight, weight / total, squares * len(labels) / total**2


def _r2(predictions: ValuePredictions, square: Estimate) -> Estimate:
    first = float(predictions.labels[0])

    def labels(chunk: ValuePredictions) -> NDArray[np.float64]:
        # Relative to the first label, so that equal labels have a variance of exactly 0. A weighted
        # mean is rounded.
        return chunk.labels.astype(float) - first

    center = mean("mean", predictions, labels).value
    spread = mean("variance", predictions, lambda chunk: (labels(chunk) - center) ** 2)
    spread_influence, square_influence = spread.influence, square.influence
    if not spread.value > 0 or spread_influence is None or square_influence is None:
        return unknown("r2", predictions)
    share = square.value / spread.value
    r2 = _transform_mse(square, "r2", 1 - share, -1 / spread.value)

    def influence(chunk: ValuePredictions) -> NDArray[np.float64]:
        return (share * spread_influence(chunk) - square_influence(chunk)) / spread.value

    return replace(r2, influence=influence)
