"""The plots of the report of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.judging.calibration import BINS
from kfp_tfjob.judging.confusion_metrics import condense
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.matrix import confusion_matrix
from kfp_tfjob.storage.escaping import short

BASELINE = "baseline"
_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_CURVE_POINTS = 100


class Plot(NamedTuple):
    """A plot of the report: its title, the drawing, and a line below it."""

    title: str
    svg: Markup
    note: str = ""


def confusions(classes: Sequence[str], model: Measures) -> list[Plot]:
    """Return the confusion matrix; nothing for a regression, or if a prediction is not a number."""
    predictions = model.predictions
    if not isinstance(predictions, ClassPredictions) or not predictions.finite:
        return []
    names, counts = condense(model.cells, classes)
    note = "Each row is a true class; the shade is the share of its rows."
    if len(names) < len(classes):
        note += ' The least confused classes are grouped as "other".'
    return [Plot("Confusion matrix", confusion_matrix(names, counts.tolist()), note)]


def curves(classes: Sequence[str], scored: Mapping[str, Measures]) -> list[Plot]:
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
        return [*found, _calibration(classes, compared)]
    return [_of_values(predictions)]


def _of_two(classes: Sequence[str], scored: Mapping[str, Measures]) -> list[Plot]:
    positive = short(classes[1], 60)
    curves = {who: one.curves[0] for who, one in scored.items()}
    model = curves["model"]
    if not model.defined:
        return []
    roc = {who: _points(*curve.roc(_CURVE_POINTS)[:2]) for who, curve in curves.items()}
    precision = {
        who: _points(*curve.precision_recall(_CURVE_POINTS)) for who, curve in curves.items()
    }
    share = float(model.positive.sum() / (model.positive.sum() + model.negative.sum()))
    return [
        Plot(
            f"ROC curve of {positive}",
            charts.curves(
                "ROC curve", ("false positive rate", "true positive rate"), roc, ((0, 0), (1, 1))
            ),
            "Dashed: guessing.",
        ),
        Plot(
            f"Precision and recall of {positive}",
            charts.curves(
                "Precision and recall", ("recall", "precision"), precision, ((0, share), (1, share))
            ),
            f"Dashed: the share of {positive}, {number(share)}, which random guessing reaches.",
        ),
    ]


def _calibration(classes: Sequence[str], scored: Mapping[str, Measures]) -> Plot:
    curves, weights = {}, {}
    for who, one in scored.items():
        found = one.calibration
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
    most = max((max(point) for points in curves.values() for point in points), default=0.0)
    end = most if 0 < most < 0.5 else 1.0  # rare classes have small probabilities
    axes = ("predicted probability", "share that came true")
    drawn = charts.curves("Calibration", axes, curves, ((0, 0), (end, end)), weights)
    return Plot("Calibration", drawn, note)


def _of_values(predictions: ValuePredictions) -> Plot:
    """Return the predictions of every n-th row."""
    every = max(1, -(-predictions.rows // _MOST_POINTS))
    parts, before = [], 0
    for chunk in predictions.chunks():
        rows = slice(-before % every, None, every)
        parts.append((chunk.labels[rows], chunk.values[rows]))
        before += chunk.rows
    true, predicted = (np.concatenate(part).tolist() for part in zip(*parts, strict=True))
    drawn = charts.scatter(true, predicted)
    return Plot("Predictions", drawn, "Dashed: predictions without error.")


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[charts.Point]:
    return list(zip(x.tolist(), y.tolist(), strict=True))
