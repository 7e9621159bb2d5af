"""Builds the metrics and plots that Kubeflow Pipelines shows.

They must be small, finite and of built-in Python types, or Kubeflow Pipelines fails the task.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kfp_tfjob.judging.confusion_metrics import condense
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.slice_checks import SliceResult, worst_first
from kfp_tfjob.storage.escaping import short

_LONGEST_NAME = 60
_MOST_BYTES = 100  # of a name as JSON, where a character beyond ASCII takes 6 or 12
_DIGITS = 6
_MOST_POINTS = 100  # of a curve
_MOST_SLICES = 30


def kfp_metrics(
    scored: Mapping[str, Measures],
    slices: Sequence[SliceResult] = (),
) -> dict[str, float]:
    """Return the finite metrics; those of other models start with `champion_` or `baseline_`.

    The primary metric of a slice is `slice/NAME/METRIC`; of many slices, the worst are there.
    """
    found: dict[str, float] = {"test_rows": scored["model"].predictions.rows}
    for who, one in scored.items():
        prefix = "" if who == "model" else f"{who.partition(' ')[0]}_"
        found |= {f"{prefix}{name}": item.value for name, item in one.measured.items()}
    by_class = scored["model"].class_metrics
    names = list(dict.fromkeys(metric.partition("/")[2] for metric in by_class))
    shown = dict(zip(names, _short_names(names), strict=True))
    for metric, item in by_class.items():
        kind, _, name = metric.partition("/")
        found[f"{kind}/{shown[name]}"] = item.value
    judged = [it for it in slices if math.isfinite(it.value)]
    worst = worst_first(judged)[:_MOST_SLICES]
    for it, name in zip(worst, _short_names([it.name for it in worst]), strict=True):
        found[f"slice/{name}/{_fitting(it.metric)}"] = it.value
    # Metadata of Kubeflow Pipelines cannot hold others.
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def confusion(
    measures: Measures, classes: Sequence[str]
) -> tuple[list[str], list[list[int]]] | None:
    """Return (names, counts) of at most 30 classes; None for a regression."""
    if not isinstance(measures.predictions, ClassPredictions):
        return None
    names, matrix = condense(measures.cells, classes)
    return _short_names(names), matrix.tolist()


def roc(measures: Measures) -> tuple[list[float], list[float], list[float]] | None:
    """Return (false positive rate, true positive rate, threshold), at most 100 points each.

    None unless there are two classes and both have rows.
    """
    predictions = measures.predictions
    if not isinstance(predictions, ClassPredictions) or predictions.classes != 2:
        return None
    if not predictions.finite or not measures.curves[0].defined:
        return None
    curve = measures.curves[0].roc(_MOST_POINTS)
    fpr, tpr, thresholds = ([round(float(value), _DIGITS) for value in part] for part in curve)
    return fpr, tpr, thresholds


def _short_names(names: Sequence[str]) -> list[str]:
    """Return names that fit; those that would be equal begin with their place."""
    found = [_fitting(name) for name in names]
    count = Counter(found)
    return [
        shown if count[shown] == 1 else _fitting(f"{place} {name}")
        for place, (name, shown) in enumerate(zip(names, found, strict=True), 1)
    ]


def _fitting(name: str) -> str:
    """Return a name, cut to at most 60 characters and 100 bytes of JSON."""
    most = _LONGEST_NAME
    while len(json.dumps(shown := short(name, most))) > _MOST_BYTES + 2:
        most -= 1
    return shown
