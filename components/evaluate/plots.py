"""The plots of the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.components.evaluate.changes import BASELINE, Changes
from kfp_tfjob.features.served_model import Task
from kfp_tfjob.judging.calibration import BINS
from kfp_tfjob.judging.confusion import condense
from kfp_tfjob.judging.estimates import weights_of
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.judging.residuals import SHARES, quantiles
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.matrix import changed_confusions, confusion_matrix
from kfp_tfjob.storage.escaping import short
from kfp_tfjob.storage.formatting import listed

_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_CURVE_POINTS = 100
_THIN_POINTS = 50  # of one of many curves
_NAMED_CURVES = 3
_BARS = 40  # of a histogram
_SCORE_BINS = 25
_ERROR_STEPS = 50


class Plot(NamedTuple):
    """A plot of the report: its title, the drawing, and a line below it."""

    title: str
    svg: Markup
    note: str = ""


def confusions(task: Task, scored: Mapping[str, Scored], changed: Changes) -> list[Plot]:
    """Return the confusion matrix, and how it differs from the champion's.

    Args:
        task: What the model must predict.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        changed: The comparison of both.
    """
    predictions = scored["model"].predictions
    if not isinstance(predictions, ClassPredictions) or not predictions.finite:
        return []
    if changed.names:
        names, counts = changed.names, changed.now
    else:
        names, (counts,) = condense([scored["model"].measures.cells], task.classes)
    fewer = len(names) < len(task.classes)
    note = "Each row is a true class; the shade is the share of its rows."
    if fewer:
        note += ' The least confused classes are grouped as "other".'
    found = [Plot("Confusion matrix", confusion_matrix(names, counts.tolist()), note)]
    if changed.names:
        drawn = changed_confusions(names, changed.before.tolist(), counts.tolist())
        found.append(
            Plot(
                f"Changes from {changed.against}",
                drawn,
                "Change in the number of rows in each cell: green is better, red is worse.",
            )
        )
    return found


def curves(task: Task, scored: Mapping[str, Scored]) -> list[Plot]:
    """Return all other plots; none if a prediction is not a number.

    Args:
        task: What the model must predict.
        scored: As of `confusions`.
    """
    predictions = scored["model"].predictions
    if not predictions.finite:
        return []
    compared = {who: one for who, one in scored.items() if who != BASELINE}
    if isinstance(predictions, ClassPredictions):
        found = _of_two(task, predictions, compared) if predictions.classes == 2 else []
        if predictions.classes > 2:
            found = _of_each(task, scored["model"])
        return [*found, _calibration(task, compared)]
    return _of_values(predictions, compared)


def _of_two(task: Task, predictions: ClassPredictions, scored: Mapping[str, Scored]) -> list[Plot]:
    positive = short(task.classes[1], 60)
    curves = {who: one.measures.curves[0] for who, one in scored.items()}
    model = curves["model"]
    if not model.defined:
        return []
    roc = {who: _points(*curve.roc(_CURVE_POINTS)[:2]) for who, curve in curves.items()}
    precision = {
        who: _points(*curve.precision_recall(_CURVE_POINTS)) for who, curve in curves.items()
    }
    share = float(model.positive.sum() / (model.positive.sum() + model.negative.sum()))
    return [
        Plot(f"ROC curve of {positive}", charts.roc(roc), "Dashed: guessing."),
        Plot(
            f"Precision and recall of {positive}",
            charts.precision_recall(precision, share),
            f"Dashed: the share of {positive}, {number(share)}, which random guessing reaches.",
        ),
        _scores(task, predictions),
    ]


def _scores(task: Task, predictions: ClassPredictions) -> Plot:
    edges = np.linspace(0, 1, _SCORE_BINS + 1)
    sums = np.zeros((2, _SCORE_BINS))
    for chunk in predictions.chunks():
        scores, labels = chunk.score(1), np.asarray(chunk.labels)
        places = np.clip((scores * _SCORE_BINS).astype(np.int64), 0, _SCORE_BINS - 1)
        weights = weights_of(chunk)
        for label in (0, 1):
            mine = labels == label
            sums[label] += np.bincount(places[mine], weights[mine], _SCORE_BINS)
    shares = sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-300)
    # The class of the axis first: it has the first color.
    series = {task.classes[label]: shares[label].tolist() for label in (1, 0)}
    positive = short(task.classes[1], 60)
    drawn = charts.shares(
        "Scores of the classes", f"probability of {positive}", edges.tolist(), series
    )
    return Plot("Scores of the classes", drawn, "Rows of each class; less overlap is better.")


def _of_each(task: Task, model: Scored) -> list[Plot]:
    """Return the ROC curves of many classes, with the worst by name."""
    drawn = [curve for curve in model.measures.curves if curve.defined]
    if not drawn:
        return []
    worst = sorted(drawn, key=lambda curve: curve.auc)[:_NAMED_CURVES]
    named = {task.classes[curve.index]: _points(*curve.roc(_CURVE_POINTS)[:2]) for curve in worst}
    others = [_points(*curve.roc(_THIN_POINTS)[:2]) for curve in drawn if curve not in worst]
    areas = [f"{short(task.classes[curve.index], 40)} {number(curve.auc)}" for curve in worst]
    note = f"Each class against the rest; the smallest areas: {listed(areas, _NAMED_CURVES)}."
    return [Plot("ROC curves", charts.each_class(others, named), note)]


def _calibration(task: Task, scored: Mapping[str, Scored]) -> Plot:
    curves, weights = {}, {}
    for who, one in scored.items():
        found = one.measures.calibration
        used = found.weight > 0
        curves[who] = _points(found.predicted[used], found.observed[used])
        weights[who] = (found.weight[used] / found.weight.sum()).tolist()
    what = f"the probability of {short(task.classes[1], 60)}"
    if len(task.classes) > 2:
        what = "the highest probability of each row"
    note = (
        f"By {what}, in {BINS} bins; larger dots contain more rows. Dashed:"
        " perfectly calibrated probabilities."
    )
    return Plot("Calibration", charts.calibration(curves, weights), note)


def _of_values(predictions: ValuePredictions, scored: Mapping[str, Scored]) -> list[Plot]:
    every = max(1, -(-predictions.rows // _MOST_POINTS))
    true, predicted = _sampled(predictions, every)
    edges, counts = _binned(predictions)
    ends = zip(SHARES, quantiles(predictions), strict=True)
    note = ", ".join(f"{share * 100:g} % at most {number(value)}" for share, value in ends)
    errors = (predicted.astype(np.float64) - true).tolist()
    return [
        Plot(
            "Predictions",
            charts.scatter(true.tolist(), predicted.tolist()),
            "Dashed: predictions without error.",
        ),
        Plot(
            "Errors",
            charts.histogram("Errors", "predicted minus true", edges, counts),
            f"Of the errors, {note}.",
        ),
        Plot(
            "Errors by prediction",
            charts.residuals(predicted.tolist(), errors),
            "A slope or a funnel shows a pattern that the model has not learned.",
        ),
        _sizes(scored),
    ]


def _sizes(scored: Mapping[str, Scored]) -> Plot:
    """Draw how many rows have an error up to a size."""
    shares = [step / _ERROR_STEPS for step in range(1, _ERROR_STEPS)]
    series = {}
    for who, one in scored.items():
        predictions = one.predictions
        assert isinstance(predictions, ValuePredictions)
        sizes = quantiles(predictions, shares, lambda chunk: np.abs(chunk.errors))
        series[who] = [(0.0, 0.0), *zip(sizes, shares, strict=True)]
    most = max(points[-1][0] for points in series.values())
    return Plot(
        "Rows by the size of their error",
        charts.cumulative(series, most),
        "Shows the errors of 98% of the rows; higher is better.",
    )


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[charts.Point]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _sampled(
    predictions: ValuePredictions, every: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return true and predicted values of every n-th row."""
    parts, before = [], 0
    for chunk in predictions.chunks():
        rows = slice(-before % every, None, every)
        parts.append((chunk.labels[rows], chunk.values[rows]))
        before += chunk.rows
    true, predicted = zip(*parts, strict=True)
    return np.concatenate(true), np.concatenate(predicted)


def _binned(predictions: ValuePredictions) -> tuple[list[float], list[int]]:
    """Return the edges of a histogram's bars, and the number of errors in each bar."""
    ends = [(float(c.errors.min()), float(c.errors.max())) for c in predictions.chunks()]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    # Widen the range if all errors are equal, or too close for float64 to separate the edges.
    least = 2 * _BARS * np.spacing(max(-low, high))
    if high - low < least:
        low, high = low - max(least, 0.5), high + max(least, 0.5)
    edges, counts = np.linspace(low, high, _BARS + 1), np.zeros(_BARS, np.int64)
    for chunk in predictions.chunks():
        counts += np.histogram(chunk.errors, _BARS, (low, high))[0]
    return edges.tolist(), counts.tolist()
