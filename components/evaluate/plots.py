"""The plots of the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.components.evaluate.changes import BASELINE
from kfp_tfjob.judging.calibration import BINS
from kfp_tfjob.judging.confusion import condense
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.matrix import confusion_matrix
from kfp_tfjob.storage.escaping import short
from kfp_tfjob.storage.formatting import listed

_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_CURVE_POINTS = 100
_THIN_POINTS = 50  # of one of many curves
_NAMED_CURVES = 3
_BARS = 40  # of a histogram


class Plot(NamedTuple):
    """A plot of the report: its title, the drawing, and a line below it."""

    title: str
    svg: Markup
    note: str = ""


def confusions(classes: Sequence[str], model: Scored) -> list[Plot]:
    """Return the confusion matrix; nothing for a regression, or if a prediction is not a number."""
    predictions = model.predictions
    if not isinstance(predictions, ClassPredictions) or not predictions.finite:
        return []
    names, counts = condense(model.measures.cells, classes)
    note = "Each row is a true class; the shade is the share of its rows."
    if len(names) < len(classes):
        note += ' The least confused classes are grouped as "other".'
    return [Plot("Confusion matrix", confusion_matrix(names, counts.tolist()), note)]


def curves(classes: Sequence[str], scored: Mapping[str, Scored]) -> list[Plot]:
    """Return all other plots; none if a prediction is not a number.

    Args:
        classes: The names of the classes; none for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    predictions = scored["model"].predictions
    if not predictions.finite:
        return []
    compared = {who: one for who, one in scored.items() if who != BASELINE}
    if isinstance(predictions, ClassPredictions):
        found = _of_two(classes, compared) if predictions.classes == 2 else []
        if predictions.classes > 2:
            found = _of_each(classes, scored["model"])
        return [*found, _calibration(classes, compared)]
    return _of_values(predictions)


def _of_two(classes: Sequence[str], scored: Mapping[str, Scored]) -> list[Plot]:
    positive = short(classes[1], 60)
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
    ]


def _of_each(classes: Sequence[str], model: Scored) -> list[Plot]:
    """Return the ROC curves of many classes, with the worst by name."""
    drawn = [curve for curve in model.measures.curves if curve.defined]
    if not drawn:
        return []
    worst = sorted(drawn, key=lambda curve: curve.auc)[:_NAMED_CURVES]
    named = {classes[curve.index]: _points(*curve.roc(_CURVE_POINTS)[:2]) for curve in worst}
    others = [_points(*curve.roc(_THIN_POINTS)[:2]) for curve in drawn if curve not in worst]
    areas = [f"{short(classes[curve.index], 40)} {number(curve.auc)}" for curve in worst]
    note = f"Each class against the rest; the smallest areas: {listed(areas, _NAMED_CURVES)}."
    return [Plot("ROC curves", charts.each_class(others, named), note)]


def _calibration(classes: Sequence[str], scored: Mapping[str, Scored]) -> Plot:
    curves, weights = {}, {}
    for who, one in scored.items():
        found = one.measures.calibration
        used = found.weight > 0
        curves[who] = _points(found.predicted[used], found.observed[used])
        weights[who] = (found.weight[used] / found.weight.sum()).tolist()
    what = f"the probability of {short(classes[1], 60)}"
    if len(classes) > 2:
        what = "the highest probability of each row"
    note = (
        f"By {what}, in {BINS} bins; larger dots contain more rows. Dashed:"
        " perfectly calibrated probabilities."
    )
    return Plot("Calibration", charts.calibration(curves, weights), note)


def _of_values(predictions: ValuePredictions) -> list[Plot]:
    every = max(1, -(-predictions.rows // _MOST_POINTS))
    true, predicted = _sampled(predictions, every)
    edges, counts = _binned(predictions)
    return [
        Plot(
            "Predictions",
            charts.scatter(true.tolist(), predicted.tolist()),
            "Dashed: predictions without error.",
        ),
        Plot("Errors", charts.histogram("Errors", "predicted minus true", edges, counts)),
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
