"""Lists the names of the metrics, so that checking a form does not import numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

CLASSIFICATION = (
    "accuracy",
    "balanced_accuracy",
    "auc",
    "average_precision",
    "macro_f1",
    "mcc",
    "log_loss",
    "brier",
    "ece",
)
REGRESSION = ("rmse", "mae", "r2", "mean_error")
PER_CLASS = ("precision", "recall", "f1")  # written as precision/<class>
OF_SEVERAL_CLASSES = ("auc", "average_precision")  # without a value where there is one class
# Of two classes, they are about the one that sorts last; the AUC of both classes is the same.
_OF_LAST_CLASS = ("average_precision",)
LOWER_IS_BETTER = frozenset({"log_loss", "brier", "ece", "rmse", "mae"})
# They have a value, but no standard error that is right: they can have thresholds, but they cannot
# compare models. The ECE of a well calibrated model is above 0 by chance alone.
ONLY_THRESHOLDS = frozenset({"ece", "mean_error"})
_IN_SHORT = ("accuracy", "auc", "macro_f1", "log_loss", "rmse", "mae", "r2")
# The smallest and the largest value, where they are not 0 and 1.
_RANGES = {
    "log_loss": (0.0, math.inf),
    "brier": (0.0, 2.0),
    "mcc": (-1.0, 1.0),
    "rmse": (0.0, math.inf),
    "mae": (0.0, math.inf),
    "mean_error": (-math.inf, math.inf),
    "r2": (-math.inf, 1.0),
}
_TOP = re.compile(r"top_([1-9]\d{0,2})_accuracy")
MOST_TOP = 255
OWN = "own/"  # before the name of a user's own metric


def top_k(metric: str) -> int | None:
    """Return k of the metric `top_<k>_accuracy`, 2 to 255; None for any other."""
    found = _TOP.fullmatch(metric)
    k = int(found[1]) if found else 0
    return k if 2 <= k <= MOST_TOP else None


def task_of(metric: str) -> str:
    """Return the task that a metric belongs to; empty if there is no such metric."""
    kind, _, name = metric.partition("/")
    if metric in CLASSIFICATION or top_k(metric) or (kind in PER_CLASS and name):
        return "classification"
    return "regression" if metric in REGRESSION else ""


def labelled(metric: str, classes: Sequence[str]) -> str:
    """Return a metric's name for people, with its class if it is only about one of two."""
    if metric in _OF_LAST_CLASS and len(classes) == 2:
        return f"{metric} of {classes[-1]}"
    return metric


def is_own(metric: str) -> bool:
    """Return whether a metric is one of the user's own."""
    return metric.startswith(OWN) and metric != OWN


def range_of(metric: str) -> tuple[float, float]:
    """Return the smallest and the largest value that a metric can have."""
    return (-math.inf, math.inf) if is_own(metric) else _RANGES.get(metric, (0.0, 1.0))


def in_short(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that fit on one line, of those in a verdict; the report has them all."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and (name in _IN_SHORT or not task_of(name))
    }
