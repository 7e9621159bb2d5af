"""A metric with its uncertainty, from the influence of each row.

The influence values of a metric say how much each row moves it. Their mean is zero, and
sqrt(sum of squares) / rows is the standard error. For the difference between two models on the same
rows, subtract their influence values. So one rule gives every interval and every paired comparison.
For the AUC, it is exactly DeLong's (DeLong, DeLong and Clarke-Pearson 1988).

Influence values are computed by chunk, so the memory does not grow with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.chance import ChanceSum, LabelTerms, blend
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
        relabeled: What the metric would be with other labels; None if that is not known.
        rule_elsewhere: From the estimate of another model and a chunk of its predictions to their
            influence values if this model had predicted them; None where `rule` tells it.
        curves: The curves by which a metric of ranks orders the rows.
        of_constant: The value of every model that ignores the columns, which the value has to beat;
            NaN where such models differ.
        against_guess: Whether that is a guess that names each class as often as the model.
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
    relabeled: LabelTerms | None = None
    rule_elsewhere: Callable[[Estimate, Any], NDArray[np.float64]] | None = None
    curves: tuple[Any, ...] = ()
    of_constant: float = math.nan
    against_guess: bool = False

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

    @cached_property
    def by_chance(self) -> tuple[float, ChanceSum] | None:
        """The value if the predictions say nothing about the labels: its mean, and the rest.

        The labels of the test rows are shuffled, and their numbers stay. None if that is unknown.
        """
        if self.relabeled is None or not math.isfinite(self.value):
            return None
        expected = self.relabeled.expected
        mean = self.relabeled.mean if math.isnan(expected) else expected
        return mean, self.relabeled.shuffled()

    def influence_of(self, other: Estimate, chunk: Any) -> NDArray[np.float64]:
        """Return the (rows,) influence values of another model's predictions on this value."""
        assert self.rule is not None
        return self.rule_elsewhere(other, chunk) if self.rule_elsewhere else self.rule(chunk)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval, clipped to the metric's range; NaN where unknown.

        It contains `of_constant` exactly where the gate's bound, at a confidence of
        (1 + confidence) / 2, does not exclude that chance explains the value.
        """
        low, high = self._by_rows(confidence)
        distance = self.value - self.of_constant
        if not distance or not math.isfinite(distance + low) or self.by_chance is None:
            return low, high
        mean, chance = self.by_chance
        level = (1 + confidence) / 2
        if distance > 0:
            critical = mean - self.of_constant + chance.critical(level)
            return self.value - blend(self.value - low, critical, distance), high
        critical = self.of_constant - mean + chance.negative().critical(level)
        return low, self.value + blend(high - self.value, critical, -distance)

    def _by_rows(self, confidence: float) -> tuple[float, float]:
        """Return the interval of the rows' influence values alone."""
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


def swap_terms(ours: Estimate, theirs: Estimate) -> Iterator[NDArray[np.float64]]:
    """Yield by chunk how much of `ours - theirs`, of two models on the same rows, is due to a row.

    A term is what changes if the models swap their predictions in this row: the mean of what both
    models' influence functions say. For means and the AUC, the terms sum to the difference, but for
    the correction of small samples; for others, they do but for terms of third order.
    """
    assert ours.rule is not None and theirs.rule is not None
    both = zip(ours.predictions.chunks(), theirs.predictions.chunks(), strict=True)
    for mine, other in both:
        change = ours.rule(mine) - ours.influence_of(theirs, other)
        change += theirs.influence_of(ours, mine) - theirs.rule(other)
        yield change / (2 * ours.predictions.rows)


def mean(
    metric: str,
    predictions: Predictions,
    values: Rule,
    proportion: bool = False,
    relabeled: LabelTerms | None = None,
) -> Estimate:
    """Estimate the mean of a value of each row.

    Args:
        metric: The name of the metric.
        predictions: The model's predictions.
        values: From a chunk of predictions to (rows,) values.
        proportion: Whether the values are 0 or 1.
        relabeled: What the mean would be with other labels, if that is known.
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

    return Estimate(metric, value, predictions, rule, support, proportion, relabeled=relabeled)


def counting(predictions: Any) -> Any:
    """Return the predictions of the rows with a weight, because others tell nothing."""
    if predictions.weights is None or predictions.weights.all():
        return predictions
    return predictions[predictions.weights > 0]


def label_shares(predictions: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (classes,) shares of the weight of the rows, and those of the squared weights.

    Every row has a weight above 0.

    The squared weights are in units of the squared mean weight, so that both are equal where all
    rows count the same.
    """
    sums = np.zeros((2, predictions.classes))
    for chunk in predictions.chunks():
        weights = weights_of(chunk)
        sums[0] += np.bincount(chunk.labels, weights, predictions.classes)
        sums[1] += np.bincount(chunk.labels, weights**2, predictions.classes)
    total = sums[0].sum()
    return sums[0] / total, sums[1] * predictions.rows / total**2


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
