"""A metric with its uncertainty, from the influence of each row.

The influence values of a metric say how much each row moves it. Their mean is zero, and
sqrt(sum of squares) / rows is the standard error. For the difference between two models on the same
rows, subtract their influence values. So one rule gives every interval and every paired comparison.
For the AUC, it is exactly DeLong's (DeLong, DeLong and Clarke-Pearson 1988).

Influence values are computed by chunk, so the memory does not grow with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.options.metric_names import LOWER_IS_BETTER, range_of

_NORMAL = NormalDist()
_TINY = 1e-12  # the distance from the end of a range that is a matter of rounding
_USUAL = 10  # as many rows as the usual variance counts for
Rule = Callable[[Any], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric of one model on the test rows.

    Attributes:
        metric: Its name.
        value: The value; NaN where the rows do not define it.
        predictions: The model's predictions.
        rule: From a chunk of the predictions to its (rows,) influence values, scaled so that
            sqrt(sum of squares over all chunks) / rows is the standard error of the value; None if
            the value is NaN, or its uncertainty is not known.
        support: The number of rows behind the value; for the AUC, those of the smaller class. Of
            weighted rows, the number of equal rows that would tell as much (Kish). Where rare
            classes decide, the number of rows that would know the variance as well.
        proportion: Whether it is a share of `support` rows.
        variance: The square of the standard error, if it is known without the rows.
        usual: The square of the standard error that such a value usually has, if that is known.
        hidden: The variance of classes that are all right or all wrong, which no row shows.
        shift: How far these classes move the middle of the interval.
        has_interval: Whether the rows say how uncertain the value is.
    """

    metric: str
    value: float
    predictions: Predictions
    rule: Rule | None
    support: int
    proportion: bool = False
    variance: float = math.nan
    usual: float = math.nan
    hidden: float = 0.0
    shift: float = 0.0
    has_interval: bool = True

    @property
    def sign(self) -> int:
        """1 if a higher value is better, else -1."""
        lower = self.metric in LOWER_IS_BETTER or self.metric in self.predictions.minimize
        return -1 if lower else 1

    @cached_property
    def standard_error(self) -> float:
        """The standard error of the value; 0 if it is not known."""
        if not math.isnan(self.variance):
            return math.sqrt(self.variance)
        if self.rule is None:
            return 0.0
        squares = [_squares(self.rule(chunk)) for chunk in self.predictions.chunks()]
        return math.sqrt(math.fsum(squares)) / max(self.predictions.rows, 1)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval, clipped to the metric's range; NaN where unknown."""
        known = math.isfinite(self.value) and self.support >= 2 and self.has_interval
        if not known or self.rule is None:
            return math.nan, math.nan
        level = (1 + confidence) / 2
        if self.proportion:
            return _wilson(self.value, self.support, _NORMAL.inv_cdf(level))
        quantile = t_quantile(level, self.support - 1)
        if self.hidden > self.standard_error**2:  # whose degrees of freedom these are
            quantile = _NORMAL.inv_cdf(level)
        lowest, highest = range_of(self.metric)
        if math.isfinite(highest - lowest):
            return self._score_interval(quantile, lowest, highest - lowest)
        reach = quantile * self.standard_error
        return max(self.value - reach, lowest), min(self.value + reach, highest)

    def _score_interval(self, quantile: float, lowest: float, width: float) -> tuple[float, float]:
        """Return Wilson's interval of a metric with two ends.

        Its count is the number of rows from which a share of the same value would have the same
        standard error (Korn and Graubard 1998). Near an end, `value +- quantile * error` is far too
        short: for a model without a single error, it would claim that there are none.
        """
        share = (self.value - lowest) / width
        variance, middle = self.standard_error**2 + self.hidden, share
        if not _TINY < share < 1 - _TINY:
            count = float(self.support)
        elif not variance:
            return self.value, self.value  # constant scores: the same for all rows
        else:
            if not math.isnan(self.usual):
                # A few rows decide an AUC near 1, and those of a rare class may all be missing.
                rows = self.support + _USUAL
                variance = (self.support * variance + _USUAL * self.usual) / rows
            count = share * (1 - share) * width**2 / variance
            middle = min(max(share + self.shift / width, 0.0), 1.0)
        low, high = _wilson(middle, count, quantile)
        low, high = min(low, share), max(high, share)
        return lowest + low * width, lowest + high * width


@dataclass(frozen=True)
class Measured:
    """A metric for display: its value and its two-sided interval, NaN where unknown."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, item: Estimate, confidence: float) -> Measured:
        """Keep the parts of an estimate that are shown."""
        return cls(item.value, *item.interval(confidence))


def unknown(metric: str, predictions: Predictions) -> Estimate:
    """Return the estimate of a metric that the rows do not define."""
    return Estimate(metric, math.nan, predictions, None, 0)


def paired_error(ours: Estimate, theirs: Estimate) -> float:
    """Return the standard error of `ours - theirs`, of two models on the same rows."""
    if ours.rule is None or theirs.rule is None:
        return math.nan
    if theirs.variance == 0:
        return ours.standard_error  # no row moves the other, which is constant: no rows are needed
    squares = [
        _squares(ours.rule(mine) - theirs.rule(other))
        for mine, other in zip(ours.predictions.chunks(), theirs.predictions.chunks(), strict=True)
    ]
    return math.sqrt(math.fsum(squares)) / ours.predictions.rows


def mean(
    metric: str,
    predictions: Predictions,
    values: Rule,
    proportion: bool = False,
) -> Estimate:
    """Estimate the mean of a value of each row.

    Args:
        metric: The name of the metric.
        predictions: The model's predictions.
        values: From a chunk of predictions to (rows,) values.
        proportion: Whether the values are 0 or 1.
    """
    sums: list[tuple[float, float, float]] = []
    for chunk in predictions.chunks():
        found = values(chunk)
        if chunk.weights is None:
            sums.append((float(found.sum()), chunk.rows, chunk.rows))
            continue
        weights = weights_of(chunk)
        sums.append((inner(weights, found), float(weights.sum()), inner(weights, weights)))
    total, weight, squares = (math.fsum(part) for part in zip(*sums, strict=True))
    if weight <= 0:
        return unknown(metric, predictions)
    value, support = total / weight, int(weight * weight / squares)
    scale = predictions.rows / weight * correction(support)

    def rule(chunk: Predictions) -> NDArray[np.float64]:
        pull = (values(chunk) - value) * scale
        return pull if chunk.weights is None else pull * weights_of(chunk)

    return Estimate(metric, value, predictions, rule, support, proportion)


def weights_of(chunk: Predictions) -> NDArray[np.float64]:
    """Return the (rows,) weights of a chunk; ones where all rows count the same."""
    if chunk.weights is None:
        return np.ones(chunk.rows)
    return chunk.weights.astype(np.float64)


def correction(support: float) -> float:
    """Return by how much a standard deviation of this many rows is too small."""
    return math.sqrt(support / max(support - 1, 1))


def t_quantile(level: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution (Abramowitz and Stegun 26.7.5).

    It is exact for 1 and 2 degrees of freedom; to level 0.975, the error is below 1% for 3, and
    0.3% for more.
    """
    if freedom < 2:
        return math.tan(math.pi * (level - 0.5))
    if freedom < 3:  # a number between two integers counts as the lower one, which is cautious
        return (2 * level - 1) / math.sqrt(2 * level * (1 - level))
    z = _NORMAL.inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def t_tail(value: float, freedom: int) -> float:
    """Return the probability that Student's t exceeds a value (Wallace 1959).

    The error is below 1% of the probability for 9 or more degrees of freedom.
    """
    if math.isinf(value):
        return 0.0 if value > 0 else 1.0
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    z = math.copysign(scale * math.sqrt(freedom * math.log1p(value * value / freedom)), value)
    return math.erfc(z / math.sqrt(2)) / 2


def inner(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return the inner product of two vectors, on one core: BLAS would wait for others."""
    return float(np.einsum("i,i->", left, right))


def _squares(values: NDArray[np.float64]) -> float:
    return inner(values, values)


def _wilson(share: float, count: float, z: float) -> tuple[float, float]:
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)
