"""Compares two models on the same test rows: is the challenger better, beyond chance?

The difference in a metric is estimated from paired rows (estimates.py), so rows that are hard for
both models cancel out. For the AUC, this is DeLong's paired test. For a share of rows (the
accuracy, the top-k accuracy, the precision and the recall of a class), it is McNemar's test with
the continuity correction: without the correction, equal models that disagree on only a few rows
would be promoted too often. For the other metrics, it is the paired t-test. A metric of the user's
own may have few values, such as the cost of an error, so its t-test has such a correction, too.
There is no random sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kfp_tfjob.judging.estimates import paired_error, t_quantile, t_tail, weights_of
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import Predictions

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
        error: The standard error of the gain; NaN when unknown.
        step: How far the bounds are widened, because the metric changes by whole rows.
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
    error: float = math.nan
    step: float = 0.0

    @property
    def known(self) -> bool:
        """Whether there are enough rows for a bound."""
        return math.isfinite(self.low)

    def chance_of_loss(self, margin: float) -> float:
        """Return the p-value of a loss: how often chance alone shows one of this size.

        Args:
            margin: The true loss that is accepted, in units of the metric.

        Returns:
            The one-sided p-value of "the true gain is not below minus the margin"; NaN when
            unknown.
        """
        if not self.known:
            return math.nan
        loss = -(self.gain + margin) - self.step
        if self.error == 0:
            return 0.0 if loss > 0 else 1.0
        return t_tail(loss / self.error, self.support - 1)


def compare(
    challenger: Measures,
    other: Measures,
    metric: str,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models on the same rows in the same order.

    Args:
        challenger: The new model.
        other: The champion or the trivial baseline.
        metric: A metric of the task.
        confidence: The confidence of each one-sided bound, for example 0.95.
    """
    ours, theirs = challenger.estimate(metric), other.estimate(metric)
    gain = ours.sign * (ours.value - theirs.value)
    support = min(ours.support, theirs.support)
    low = high = detectable = error = math.nan
    step = 0.0
    if math.isfinite(gain) and support >= LEAST_ROWS:
        error = paired_error(ours, theirs)
        quantile = t_quantile(confidence, support - 1)
        if metric in ours.predictions.own:
            error = math.hypot(error, gain / math.sqrt(support))
            step = _of_one_row(ours.predictions, theirs.predictions, metric)
        elif ours.proportion:
            # If both models are equal, the variance is the share of rows they disagree on.
            error = math.hypot(error, gain / math.sqrt(support))
            step = 1 / support if error else 0.0
            quantile = NormalDist().inv_cdf(confidence)
        reach = quantile * error + step
        low, high = gain - reach, gain + reach
        detectable = reach + NormalDist().inv_cdf(_POWER) * error
    return Comparison(
        metric,
        ours.value,
        theirs.value,
        gain,
        low,
        high,
        detectable,
        support,
        confidence,
        error,
        step,
    )


def _of_one_row(ours: Predictions, theirs: Predictions, metric: str) -> float:
    """Return how much a row in which the models differ moves a mean, on average."""
    change = rows = total = 0.0
    for mine, other in zip(ours.chunks(), theirs.chunks(), strict=True):
        weights = weights_of(mine)
        apart = np.abs(mine.own_values(metric) - other.own_values(metric)) * weights
        change, rows = change + float(apart.sum()), rows + int(np.count_nonzero(apart))
        total += float(weights.sum())
    return change / rows / total if rows else 0.0
