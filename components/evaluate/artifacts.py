"""Builds the metrics and plots that Kubeflow Pipelines shows.

Kubeflow Pipelines stores them as metadata of artifacts, and fails the task if a number is not
finite, a type is NumPy's, or the metadata is too long. So numbers are Python floats, infinite ones
are dropped, names are shortened by their bytes, and curves and slices are limited. Called by
evaluate's engine.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kfp_tfjob.common.escaping import short
from kfp_tfjob.judging.confusion_metrics import condense
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.slice_checks import SliceResult, worst_first

# With these limits, a model with 30 classes has less than 32 KiB of metrics and curves as JSON.
_LONGEST_NAME = 60
_MOST_BYTES = 100  # of a name as JSON, where a character beyond ASCII takes 6 or 12
_DIGITS = 6  # after the point, of a rate; the chart in the UI shows fewer
_MOST_POINTS = 100  # of a curve; the UI's chart is some 500 pixels wide
_MOST_SLICES = 30  # worst first; each is a metric in the UI, and the report lists all of them


def kfp_metrics(
    scored: Mapping[str, Measures],
    slices: Sequence[SliceResult] = (),
) -> dict[str, float]:
    """Return the finite metrics of all compared models by name.

    Names of the champion's and the baseline's metrics start with `champion_` or `baseline_`. The
    primary metric of a slice is `slice/NAME/METRIC`; only the 30 worst slices are included.
    """
    metrics: dict[str, float] = {"test_rows": scored["model"].predictions.rows}
    for model_name, measures in scored.items():
        # The champion's name is `champion <version>`.
        prefix = "" if model_name == "model" else f"{model_name.partition(' ')[0]}_"
        metrics |= {f"{prefix}{name}": metric.value for name, metric in measures.measured.items()}
    class_metrics = scored["model"].class_metrics
    classes = list(dict.fromkeys(metric.partition("/")[2] for metric in class_metrics))
    short_names = dict(zip(classes, _short_names(classes), strict=True))
    for metric_name, metric in class_metrics.items():
        kind, _, class_name = metric_name.partition("/")
        metrics[f"{kind}/{short_names[class_name]}"] = metric.value
    worst = worst_first([part for part in slices if math.isfinite(part.value)])[:_MOST_SLICES]
    slice_names = _short_names([part.name for part in worst])
    for part, slice_name in zip(worst, slice_names, strict=True):
        metrics[f"slice/{slice_name}/{_short_name(part.metric)}"] = part.value
    # Kubeflow Pipelines' metadata cannot store NaN or infinity.
    return {name: float(number) for name, number in metrics.items() if math.isfinite(number)}


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
    fpr, tpr, thresholds = ([round(float(rate), _DIGITS) for rate in axis] for axis in curve)
    return fpr, tpr, thresholds


def _short_names(names: Sequence[str]) -> list[str]:
    """Shorten names; names that become equal get their position, from 1, as a prefix."""
    shortened = [_short_name(name) for name in names]
    occurrences = Counter(shortened)
    return [
        short_name if occurrences[short_name] == 1 else _short_name(f"{position} {name}")
        for position, (name, short_name) in enumerate(zip(names, shortened, strict=True), 1)
    ]


def _short_name(name: str) -> str:
    """Truncate a name to at most 60 characters and 100 bytes of JSON."""
    length = _LONGEST_NAME
    while len(json.dumps(short_name := short(name, length))) > _MOST_BYTES + 2:  # 2 quotes
        length -= 1
    return short_name
