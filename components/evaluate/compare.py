"""Two models on the same test rows: is the challenger better, beyond chance?

The difference of a metric is estimated from the paired rows (metrics.py), so that what is hard for
both models cancels out. For the AUC this is the paired test of DeLong; for the accuracy it is the
test of McNemar with its continuity correction, without which equal models that disagree on a few
rows only would be promoted too often; for the others it is the paired t test. Nothing is drawn at
random.
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

# Below this a standard error is itself a guess.
LEAST_ROWS = 10
# The smallest detectable difference is the one that would be detected this often.
_POWER = 0.8


@dataclass(frozen=True)
class Comparison:
    """The challenger against another model, by one metric.

    Attributes:
        metric: The metric.
        challenger: Its value for the challenger.
        other: Its value for the other model.
        gain: How much better the challenger is; above 0 is better for every metric.
        low: One-sided lower bound of the gain at `confidence`; NaN when it cannot be known.
        high: One-sided upper bound.
        detectable: The smallest true gain that a test with these rows would detect 8 times in 10.
        support: The rows the metric is based on: of the smaller class for the AUC.
        confidence: Of each bound.
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
        """Whether the rows allow a bound."""
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
        confidence: Of each one-sided bound, for instance 0.95.
        classes: The names of the classes, for the metrics of one class.
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
    """Return how far the one-sided bound is from the gain, and the standard error."""
    difference = ours.influence - theirs.influence
    rows = len(difference)
    error = root_sum_of_squares(difference) / rows
    if ours.metric != "accuracy":
        return t_quantile(confidence, support - 1) * error, error
    # Under the hypothesis that both are equal the variance is the share of rows they disagree on.
    error = math.hypot(error, gain / math.sqrt(rows))
    step = 1 / rows if error else 0.0
    return NormalDist().inv_cdf(confidence) * error + step, error
