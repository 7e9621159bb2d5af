"""Compares two models on the same test rows: is the challenger better, beyond chance?

The difference in a metric is estimated from paired rows (metrics.py), so rows that are hard for
both models cancel out. For the AUC, this is DeLong's paired test. For the accuracy, it is McNemar's
test with the continuity correction: without the correction, equal models that disagree on only a
few rows would be promoted too often. For the other metrics, it is the paired t-test. There is no
random sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from kfp_tfjob.components.evaluate.metrics import (
    Estimate,
    estimate,
    root_sum_of_squares,
    t_quantile,
)
from kfp_tfjob.components.evaluate.predictions import Predictions
from kfp_tfjob.options.metric_names import LOWER_IS_BETTER

# With fewer rows, a standard error is itself a guess.
LEAST_ROWS = 10
# The probability of detecting the smallest detectable difference.
_POWER = 0.8


@dataclass(frozen=True)
class Comparison:
    """The challenger compared with one other model, by one metric.

    Attributes:
        metric: The metric.
        challenger: Its value for the challenger.
        other: Its value for the other model.
        gain: How much better the challenger is; above 0 is better for every metric.
        low: One-sided lower bound of the gain at `confidence`; NaN when unknown.
        high: One-sided upper bound.
        detectable: The smallest true gain that a test with these rows would detect 8 times in 10.
        support: The number of rows behind the metric; for the AUC, those of the smaller class.
        confidence: The confidence of each bound.
    """

    metric: str
    challenger: float
    other: float
    gain: float
    low: float
    high: float
    detectable: float
    support: int
    confidence: float

    @property
    def known(self) -> bool:
        """Whether there are enough rows for a bound."""
        return math.isfinite(self.low)


def compare(
    challenger: Predictions,
    other: Predictions,
    metric: str,
    confidence: float = 0.95,
    classes: list[str] | None = None,
) -> Comparison:
    """Compare two models on the same rows in the same order.

    Args:
        challenger: The new model's predictions.
        other: The predictions of the champion or of the trivial baseline.
        metric: A metric of the task.
        confidence: The confidence of each one-sided bound, for instance 0.95.
        classes: The names of the classes, for per-class metrics.
    """
    ours = estimate(challenger, metric, classes)
    theirs = estimate(other, metric, classes)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    gain = sign * (ours.value - theirs.value)
    support = min(ours.support, theirs.support)
    low = high = detectable = math.nan
    if math.isfinite(gain) and support >= LEAST_ROWS:
        reach, error = _reach(ours, theirs, gain, support, confidence)
        low, high = gain - reach, gain + reach
        detectable = reach + NormalDist().inv_cdf(_POWER) * error
    return Comparison(
        metric, ours.value, theirs.value, gain, low, high, detectable, support, confidence
    )


def _reach(
    ours: Estimate, theirs: Estimate, gain: float, support: int, confidence: float
) -> tuple[float, float]:
    """Return the distance from the gain to the one-sided bound, and the standard error."""
    difference = ours.influence - theirs.influence
    rows = len(difference)
    error = root_sum_of_squares(difference) / rows
    if ours.metric != "accuracy":
        return t_quantile(confidence, support - 1) * error, error
    # If both models are equal, the variance is the share of rows they disagree on.
    error = math.hypot(error, gain / math.sqrt(rows))
    step = 1 / rows if error else 0.0
    return NormalDist().inv_cdf(confidence) * error + step, error
