"""Lists the names of the metrics, so that checking a form does not import numpy.

Called by evaluate, the forms of the options, and the pages that show a metric.
"""

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
OF_SEVERAL_CLASSES = ("auc", "average_precision")  # undefined for rows of a single class
# With two classes, these are computed for the class that sorts last; the AUC is equal for both.
_OF_LAST_CLASS = ("average_precision",)
LOWER_IS_BETTER = frozenset({"log_loss", "brier", "ece", "rmse", "mae"})
# These lack a correct standard error, so they can have thresholds but cannot compare models. The
# ECE of a well calibrated model is above 0 by chance alone.
ONLY_THRESHOLDS = frozenset({"ece", "mean_error"})
_IN_SHORT = ("accuracy", "auc", "macro_f1", "log_loss", "rmse", "mae", "r2")
# The smallest and the largest value of each metric whose range is not 0 to 1.
_RANGES = {
    "log_loss": (0.0, math.inf),
    "brier": (0.0, 2.0),
    "mcc": (-1.0, 1.0),
    "rmse": (0.0, math.inf),
    "mae": (0.0, math.inf),
    "mean_error": (-math.inf, math.inf),
    "r2": (-math.inf, 1.0),
}
# What each metric measures, for readers who do not know it.
_MEANINGS = {
    "accuracy": "the share of rows whose class is predicted correctly",
    "balanced_accuracy": "the mean recall of the classes, so a rare class counts like a frequent"
    " one",
    "auc": "how often a row of the class gets a higher score than another row; guessing gives 0.5",
    "average_precision": "the area below the precision-recall curve; guessing gives the class's"
    " share",
    "macro_f1": "the mean F1 of the classes, so a rare class counts like a frequent one",
    "mcc": "Matthews' correlation of true and predicted classes: 1 is perfect, 0 is guessing",
    "log_loss": "the penalty for low probabilities of the true classes; 0 is perfect",
    "brier": "the squared error of the probabilities; 0 is perfect",
    "ece": "expected calibration error: how far probabilities are from the shares that come true",
    "rmse": "root mean squared error, in the label's unit; large errors count most",
    "mae": "mean absolute error, in the label's unit",
    "r2": "the share of the label's variance that the model explains: 1 is perfect, 0 is the mean",
    "mean_error": "predicted minus true values; above 0, predictions are too high on average",
    "precision": "the share of rows predicted as the class that belong to it",
    "recall": "the share of the class's rows that are predicted as it",
    "f1": "the harmonic mean of precision and recall",
}
_TOP = re.compile(r"top_([1-9]\d{0,2})_accuracy")
MOST_TOP = 255  # the evaluator counts ranks in one byte
OWN = "own/"  # the prefix of a user's own metric


def top_k(metric: str) -> int | None:
    """Return k of the metric `top_<k>_accuracy`, 2 to 255; None for any other metric."""
    match = _TOP.fullmatch(metric)
    k = int(match[1]) if match else 0
    return k if 2 <= k <= MOST_TOP else None


def meaning(metric: str) -> str:
    """Return what a metric measures, as a clause; empty for a user's own metric."""
    if k := top_k(metric):
        return f"the share of rows whose class is among the {k} most probable ones"
    return _MEANINGS.get(metric.partition("/")[0], "")


def unit_of(metric: str) -> str:
    """Return a name that metrics with the same unit share, so that one axis suits all of them.

    Shares, and other numbers between about -1 and 1, have no unit: an empty name.
    """
    if metric in ("rmse", "mae", "mean_error"):
        return "the label's unit"
    return metric if metric in ("log_loss", "r2") or is_own(metric) else ""


def task_of(metric: str) -> str:
    """Return the task that a metric belongs to; empty if there is no such metric."""
    kind, _, name = metric.partition("/")
    if metric in CLASSIFICATION or top_k(metric) or (kind in PER_CLASS and name):
        return "classification"
    return "regression" if metric in REGRESSION else ""


def labelled(metric: str, classes: Sequence[str]) -> str:
    """Return a metric's name for people, with the class if it is computed for one class of two."""
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
    """Return the metrics of a verdict that fit on one line; the report lists all of them."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and (name in _IN_SHORT or not task_of(name))
    }
