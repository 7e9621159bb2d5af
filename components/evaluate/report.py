"""Renders the report of an evaluation as one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from kfp_tfjob.components.evaluate.metrics import MOST_SHOWN_CLASSES, Measured, condense, roc_curve
from kfp_tfjob.components.evaluate.predictions import ClassPredictions
from kfp_tfjob.components.evaluate.scored import Scored
from kfp_tfjob.components.evaluate.text import number, rough
from kfp_tfjob.options.metric_names import PER_CLASS
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.text import short
from kfp_tfjob.trainer.serving import Task

_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_BARS = 40  # of a histogram


class _Plot(NamedTuple):
    title: str
    svg: Markup
    note: str = ""


class _Class(NamedTuple):
    name: str
    rows: int
    measured: list[Measured]


def render(verdict: Mapping[str, Any], task: Task, scored: Mapping[str, Scored]) -> str:
    """Return the report as HTML, below 1 MB and without external references.

    Args:
        verdict: The content of verdict.json.
        task: What the model must predict.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    return fill(
        "components/evaluate/report.html.j2",
        title=f"Evaluation of {verdict['model_name']}",
        verdict=verdict,
        scored=scored,
        plots=_plots(task, scored),
        classes=_classes(task, scored["model"]),
        kinds=PER_CLASS,
        number=number,
        rough=rough,
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
    )


def _plots(task: Task, scored: Mapping[str, Scored]) -> list[_Plot]:
    predictions = scored["model"].predictions
    if not predictions.finite:
        return []
    if not isinstance(predictions, ClassPredictions):
        every = max(1, -(-predictions.rows // _MOST_POINTS))
        true, predicted = predictions.labels[::every], predictions.values[::every]
        edges, counts = _binned(predictions.errors)
        return [
            _Plot("Predictions", charts.scatter(true.tolist(), predicted.tolist())),
            _Plot("Errors", charts.histogram("Errors", "predicted minus true", edges, counts)),
        ]
    names, matrix = condense(predictions.confusion(), list(task.classes), MOST_SHOWN_CLASSES)
    fewer = len(names) < len(task.classes)
    note = 'The least confused classes are grouped as "other".' if fewer else ""
    plots = [_Plot("Confusion matrix", charts.confusion_matrix(names, matrix.tolist()), note)]
    if predictions.classes == 2 and 0 < predictions.labels.mean() < 1:
        curves = {
            who: _roc(one.predictions)
            for who, one in scored.items()
            if isinstance(one.predictions, ClassPredictions) and who != "baseline"
        }
        plots.append(_Plot(f"ROC curve of {short(task.classes[1], 60)}", charts.roc(curves)))
    return plots


def _roc(predictions: ClassPredictions) -> list[charts.Point]:
    fpr, tpr, _ = roc_curve(predictions.labels, predictions.scores[:, 0])
    return list(zip(fpr.tolist(), tpr.tolist(), strict=True))


def _binned(errors: NDArray[np.float64]) -> tuple[list[float], list[int]]:
    """Return the edges of a histogram's bars, and the number of errors in each bar."""
    low, high = float(errors.min()), float(errors.max())
    # Widen the range if all errors are equal, or too close for float64 to separate the edges.
    least = 2 * _BARS * np.spacing(max(-low, high))
    if high - low < least:
        low, high = low - max(least, 0.5), high + max(least, 0.5)
    counts, edges = np.histogram(errors, _BARS, (low, high))
    return edges.tolist(), counts.tolist()


def _classes(task: Task, model: Scored) -> list[_Class]:
    if not model.classes or not isinstance(model.predictions, ClassPredictions):
        return []
    support = model.predictions.confusion().sum(axis=1).tolist()
    return [
        _Class(name, rows, [model.classes[f"{kind}/{name}"] for kind in PER_CLASS])
        for name, rows in zip(task.classes, support, strict=True)
    ]


def _interval(low: float | None, high: float | None) -> str:
    known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if known else "–"


def _threshold(held: float | Mapping[str, float] | None) -> str:
    if isinstance(held, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in held.items())
    return "" if held is None else f"{held:g}"
