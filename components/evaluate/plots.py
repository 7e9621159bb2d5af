"""The evaluation report's plots, as SVG.

The report is one file that loads nothing, so each plot is drawn inside it, with few enough points
that the file stays small. If a prediction is not a number, it cannot be drawn on an axis, so the
report explains that instead. Called by report.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.common.escaping import short
from kfp_tfjob.judging.calibration import BINS
from kfp_tfjob.judging.confusion_metrics import condense
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.matrix import confusion_matrix

BASELINE = "baseline"
_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_CURVE_POINTS = 100  # a curve is a few hundred px wide


class Plot(NamedTuple):
    """A plot in the report: its title, the drawing, and a line below it."""

    title: str
    svg: Markup
    note: str = ""


def confusions(classes: Sequence[str], model: Measures) -> list[Plot]:
    """Return the confusion matrix; empty for a regression, or if a prediction is not a number."""
    predictions = model.predictions
    if not isinstance(predictions, ClassPredictions) or not predictions.finite:
        return []
    names, counts = condense(model.cells, classes)
    note = "Each row is a true class; the shade is the share of its rows."
    if len(names) < len(classes):
        note += ' The least confused classes are grouped as "other".'
    return [Plot("Confusion matrix", confusion_matrix(names, counts.tolist()), note)]


def curves(classes: Sequence[str], scored: Mapping[str, Measures]) -> list[Plot]:
    """Return the ranking curves and the calibration, or a regression's scatter plot.

    Args:
        classes: The names of the classes; empty for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.

    Returns:
        The plots; empty if a prediction is not a number.
    """
    predictions = scored["model"].predictions
    if not predictions.finite:
        return []
    # The baseline predicts the same for every row, so its curve is a single point.
    compared = {name: measures for name, measures in scored.items() if name != BASELINE}
    if isinstance(predictions, ClassPredictions):
        ranking_plots = _plot_ranking(classes, compared) if predictions.classes == 2 else []
        return [*ranking_plots, _plot_calibration(classes, compared)]
    return [_plot_predictions(predictions)]


def _plot_ranking(classes: Sequence[str], scored: Mapping[str, Measures]) -> list[Plot]:
    """Draw ROC and precision-recall curves of class 1; empty if only one class has rows."""
    positive = short(classes[1], 60)
    curves = {name: measures.curves[0] for name, measures in scored.items()}
    model = curves["model"]
    if not model.defined:
        return []
    roc = {name: _points(*curve.roc(_CURVE_POINTS)[:2]) for name, curve in curves.items()}
    precision = {
        name: _points(*curve.precision_recall(_CURVE_POINTS)) for name, curve in curves.items()
    }
    # Guessing at random has a precision equal to the share of positive rows.
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


def _plot_calibration(classes: Sequence[str], scored: Mapping[str, Measures]) -> Plot:
    """Draw the share of hits by predicted probability, with dots sized by the bin's rows."""
    curves, weights = {}, {}
    for name, measures in scored.items():
        calibration = measures.calibration
        used = calibration.weight > 0
        curves[name] = _points(calibration.predicted[used], calibration.observed[used])
        weights[name] = (calibration.weight[used] / calibration.weight.sum()).tolist()
    probability = f"the probability of {short(classes[1], 60)}"
    if len(classes) > 2:
        probability = "the highest probability of each row"
    note = (
        f"By {probability}, in {BINS} bins; larger dots contain more rows. Dashed:"
        " perfectly calibrated probabilities."
    )
    highest = max((max(point) for points in curves.values() for point in points), default=0.0)
    end = highest if 0 < highest < 0.5 else 1.0  # rare classes have small probabilities
    axes = ("predicted probability", "share that came true")
    chart = charts.curves("Calibration", axes, curves, ((0, 0), (end, end)), weights)
    return Plot("Calibration", chart, note)


def _plot_predictions(predictions: ValuePredictions) -> Plot:
    """Draw a regression's predictions over the labels, for every n-th row, at most 1500."""
    step = max(1, -(-predictions.rows // _MOST_POINTS))
    samples, rows_before = [], 0
    for chunk in predictions.chunks():
        # The first multiple of `step` in this chunk, counted from the split's first row.
        rows = slice(-rows_before % step, None, step)
        samples.append((chunk.labels[rows], chunk.values[rows]))
        rows_before += chunk.rows
    labels, predicted = (np.concatenate(arrays).tolist() for arrays in zip(*samples, strict=True))
    chart = charts.scatter(labels, predicted)
    return Plot("Predictions", chart, "Dashed: predictions without error.")


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[charts.Point]:
    return list(zip(x.tolist(), y.tolist(), strict=True))
