"""The plots of the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.judging.calibration import BINS
from kfp_tfjob.judging.metrics import MOST_SHOWN_CLASSES, condense
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.judging.residuals import SHARES, quantiles
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.judging.text import number
from kfp_tfjob.pages import charts
from kfp_tfjob.storage.text import short
from kfp_tfjob.trainer.serving import Task

_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_CURVE_POINTS = 100
_BARS = 40  # of a histogram


class Plot(NamedTuple):
    """A plot of the report: its title, the drawing, and a line below it."""

    title: str
    svg: Markup
    note: str = ""


def plots(task: Task, scored: Mapping[str, Scored]) -> list[Plot]:
    """Return the plots of an evaluation; none if a prediction is not a number.

    Args:
        task: What the model must predict.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    predictions = scored["model"].predictions
    if not predictions.finite:
        return []
    compared = {who: one for who, one in scored.items() if who != "baseline"}
    if isinstance(predictions, ClassPredictions):
        return _of_classes(task, predictions, compared)
    return _of_values(predictions)


def _of_classes(
    task: Task, predictions: ClassPredictions, scored: Mapping[str, Scored]
) -> list[Plot]:
    names, matrix = condense(predictions.confusion(), list(task.classes), MOST_SHOWN_CLASSES)
    fewer = len(names) < len(task.classes)
    note = 'The least confused classes are grouped as "other".' if fewer else ""
    found = [Plot("Confusion matrix", charts.confusion_matrix(names, matrix.tolist()), note)]
    if predictions.classes == 2:
        found += _curves(short(task.classes[1], 60), scored)
    found.append(_calibration(task, scored))
    return found


def _curves(positive: str, scored: Mapping[str, Scored]) -> list[Plot]:
    curves = {who: one.measures.curves[0] for who, one in scored.items()}
    model = curves["model"]
    if not model.defined:
        return []
    roc = {who: _points(*curve.roc(_CURVE_POINTS)[:2]) for who, curve in curves.items()}
    precision = {
        who: _points(*curve.precision_recall(_CURVE_POINTS)) for who, curve in curves.items()
    }
    share = float(model.positive.sum() / (model.positive.sum() + model.negative.sum()))
    title = f"Precision and recall of {positive}"
    note = f"Dashed: the share of {positive}, {number(share)}, which is what guessing finds."
    return [
        Plot(f"ROC curve of {positive}", charts.roc(roc)),
        Plot(title, charts.precision_recall(precision, share), note),
    ]


def _calibration(task: Task, scored: Mapping[str, Scored]) -> Plot:
    curves = {}
    for who, one in scored.items():
        found = one.measures.calibration
        used = found.weight > 0
        curves[who] = _points(found.predicted[used], found.observed[used])
    what = f"the probability of {short(task.classes[1], 60)}"
    if len(task.classes) > 2:
        what = "the highest probability of each row"
    note = f"By {what}, in {BINS} bins; dashed: probabilities that come true exactly."
    return Plot("Calibration", charts.calibration(curves), note)


def _of_values(predictions: ValuePredictions) -> list[Plot]:
    every = max(1, -(-predictions.rows // _MOST_POINTS))
    true, predicted = _sampled(predictions, every)
    edges, counts = _binned(predictions)
    ends = zip(SHARES, quantiles(predictions), strict=True)
    note = ", ".join(f"{share * 100:g} % at most {number(value)}" for share, value in ends)
    errors = (predicted.astype(np.float64) - true).tolist()
    return [
        Plot("Predictions", charts.scatter(true.tolist(), predicted.tolist())),
        Plot(
            "Errors",
            charts.histogram("Errors", "predicted minus true", edges, counts),
            f"Of the errors, {note}.",
        ),
        Plot("Errors by prediction", charts.residuals(predicted.tolist(), errors)),
    ]


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
