"""A metric with its uncertainty, from its influence function.

The influence function of a metric gives for each row how much this row moves the metric. The mean
of these values is zero, and sqrt(sum of squares) / rows is the standard error. For the difference
between two models on the same rows, subtract their influence values. So one function for each
metric yields every interval and every paired comparison. For the AUC, it is exactly DeLong's
(DeLong, DeLong and Clarke-Pearson 1988).

Rows of one group, such as the visits of one customer, may be alike. Where data_options.split.group
names the groups, influence values are first summed by group (the cluster-robust variance of Liang
and Zeger 1986), and quantiles come from Student's t for this number of groups.

Influence values are computed by chunk, so the memory does not grow with the rows. Called by the
modules that compute metrics, and by the comparison of two models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.options.metric_names import LOWER_IS_BETTER, range_of

from .null_distributions import ChanceSum, LabelTerms, blend
from .predictions import Predictions, weights_of

_NORMAL = NormalDist()
_TINY = 1e-12  # a value this close to the end of its range differs from it by rounding only
# The prior variance counts as much as this many rows, so it matters only in a small test split.
_PRIOR_ROWS = 10
_LEVEL = 0.95  # at which Student's t widens a null distribution: the default of gate.confidence
RowFunction = Callable[[Any], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric of one model on the test rows.

    Attributes:
        metric: Its name.
        value: The value; NaN where the rows do not define it.
        predictions: The model's predictions.
        influence: From a chunk of the predictions to its (rows,) influence values, scaled so that
            sqrt(sum of squares over all chunks) / rows is the standard error of the value; None if
            the value is NaN, or its uncertainty is unknown.
        effective_sample_size: The number of rows behind the value; for the AUC, the smaller class's
            rows. For weighted rows, the number of equal rows with as much information (Kish).
            Where rare classes decide, the number of rows that would estimate the variance as well.
        proportion: Whether the value is a share of `effective_sample_size` rows.
        variance: The square of the standard error, if it is known without the rows.
        prior_variance: The square of the standard error that is usual for such a value; NaN if
            unknown.
        hidden_variance: The variance of classes with only right or only wrong predictions, whose
            rows show no variance.
        center_shift: The distance by which these classes move the interval's center.
        has_interval: Whether the rows determine the uncertainty.
        relabeled: The metric as a function of the labels; None if unknown.
        cross_influence: From another model's estimate and a chunk of its predictions to their
            influence values if this model had made them; None where `influence` computes them.
        curves: The curves by which a metric of ranks orders the rows.
        of_constant: The value of every model that ignores the columns, which this value must beat;
            NaN where such models differ.
        against_guess: Whether `of_constant` is the value of a guess that names each class as often
            as the model.
    """

    metric: str
    value: float
    predictions: Predictions
    influence: RowFunction | None
    effective_sample_size: int
    proportion: bool = False
    variance: float = math.nan
    prior_variance: float = math.nan
    hidden_variance: float = 0.0
    center_shift: float = 0.0
    has_interval: bool = True
    relabeled: LabelTerms | None = None
    cross_influence: Callable[[Estimate, Any], NDArray[np.float64]] | None = None
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
        if self.influence is None:
            return 0.0
        if groups := self.predictions.group_count:
            squares = _sum_of_squares(self.influence_by_group)
            return small_sample_correction(groups) * math.sqrt(squares)
        return self._error_of_independent_rows

    @cached_property
    def influence_by_group(self) -> NDArray[np.float64]:
        """(groups,) by how much each group moves the value."""
        assert self.influence is not None
        chunks = map(self.influence, self.predictions.chunks())
        return self.predictions.sums_by_group(chunks) / self.predictions.rows

    @property
    def _error_of_independent_rows(self) -> float:
        """The standard error if rows of one group differ as much as rows of different groups."""
        assert self.influence is not None
        squares = [_sum_of_squares(self.influence(chunk)) for chunk in self.predictions.chunks()]
        return math.sqrt(math.fsum(squares)) / max(self.predictions.rows, 1)

    def by_group(self) -> Estimate:
        """Return the same with the uncertainty of rows that are alike within their group."""
        groups = self.predictions.group_count
        if not groups or self.influence is None:
            return self
        size = min(self.effective_sample_size, groups)
        # A share of groups is no share of rows, and a variance without rows does not know of them.
        return replace(self, effective_sample_size=size, proportion=False, variance=math.nan)

    @cached_property
    def _design_factor(self) -> float:
        """By how much groups make a null distribution of independent rows wider, at least 1."""
        groups = self.predictions.group_count
        if not groups or self.influence is None:
            return 1.0
        independent = self._error_of_independent_rows
        return max(self.standard_error / independent, 1.0) if independent else 1.0

    @cached_property
    def by_chance(self) -> tuple[float, ChanceSum] | None:
        """The value's mean and centered distribution if the test labels are shuffled.

        Shuffling keeps the number of rows with each label. None if the distribution is unknown.
        """
        if self.relabeled is None or not math.isfinite(self.value):
            return None
        mean = self.relabeled.expected_value
        chance = self.relabeled.shuffled()
        if (wider := self._design_factor) > 1:
            if mean > self.of_constant:
                # Fewer independent units make such a bias larger, as they do the variance.
                mean = self.of_constant + (mean - self.of_constant) * wider**2
            quantile = t_quantile(_LEVEL, self.predictions.group_count - 1)
            chance = chance.scaled(wider * quantile / _NORMAL.inv_cdf(_LEVEL))
        return mean, chance

    def influence_of(self, predictor: Estimate, chunk: Any) -> NDArray[np.float64]:
        """Return the (rows,) influence on this value if `predictor` had made the predictions."""
        assert self.influence is not None
        return (
            self.cross_influence(predictor, chunk)
            if self.cross_influence
            else self.influence(chunk)
        )

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval, clipped to the metric's range; NaN where unknown.

        It contains `of_constant` exactly if the gate's bound, at a confidence of
        (1 + confidence) / 2, does not exclude that chance explains the value. Otherwise, the report
        would contradict the verdict.
        """
        low, high = self._influence_interval(confidence)
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

    def _influence_interval(self, confidence: float) -> tuple[float, float]:
        """Return the interval from the rows' influence values, without the null distribution."""
        is_defined = (
            math.isfinite(self.value) and self.effective_sample_size >= 2 and self.has_interval
        )
        if not is_defined or self.influence is None:
            return math.nan, math.nan
        level = (1 + confidence) / 2
        if self.proportion:
            return _wilson_interval(self.value, self.effective_sample_size, _NORMAL.inv_cdf(level))
        quantile = t_quantile(level, self.effective_sample_size - 1)
        if self.hidden_variance > self.standard_error**2:  # whose degrees of freedom these are
            quantile = _NORMAL.inv_cdf(level)
        lowest, highest = range_of(self.metric)
        if math.isfinite(highest - lowest):
            return self._wilson_score_interval(quantile, lowest, highest - lowest)
        margin = quantile * self.standard_error
        return max(self.value - margin, lowest), min(self.value + margin, highest)

    def _wilson_score_interval(
        self, quantile: float, lowest: float, width: float
    ) -> tuple[float, float]:
        """Return Wilson's interval of a metric whose range has two ends.

        Its count is the number of rows with which a proportion of the same value would have the
        same standard error (Korn and Graubard 1998). Near an end, `value +- quantile * error` is
        far too short: for a model without a single error, its width would be zero.
        """
        share = (self.value - lowest) / width
        variance, center = self.standard_error**2 + self.hidden_variance, share
        if not _TINY < share < 1 - _TINY:
            count = float(self.effective_sample_size)
        elif not variance:
            return self.value, self.value  # constant scores: the same for all rows
        else:
            if not math.isnan(self.prior_variance):
                # A few rows decide an AUC near 1, and these rows of a rare class may be missing.
                rows = self.effective_sample_size + _PRIOR_ROWS
                variance = (
                    self.effective_sample_size * variance + _PRIOR_ROWS * self.prior_variance
                ) / rows
            count = share * (1 - share) * width**2 / variance
            center = min(max(share + self.center_shift / width, 0.0), 1.0)
        low, high = _wilson_interval(center, count, quantile)
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
        """Return an estimate's value and interval."""
        return cls(item.value, *item.interval(confidence))


def unknown(metric: str, predictions: Predictions) -> Estimate:
    """Return the estimate of a metric that the rows do not define."""
    return Estimate(metric, math.nan, predictions, None, 0)


def swap_terms(first: Estimate, second: Estimate) -> Iterator[NDArray[np.float64]]:
    """Yield each row's (rows,) part of `first - second`, by chunk, for two models on the same rows.

    A term is half of the change if the models swap their predictions in this row, averaged over
    both models' influence functions. For means and the AUC, the terms sum to the difference, except
    for the small-sample correction; for other metrics, they do up to terms of third order.
    """
    assert first.influence is not None and second.influence is not None
    chunk_pairs = zip(first.predictions.chunks(), second.predictions.chunks(), strict=True)
    for first_chunk, second_chunk in chunk_pairs:
        change = first.influence(first_chunk) - first.influence_of(second, second_chunk)
        change += second.influence_of(first, first_chunk) - second.influence(second_chunk)
        yield change / (2 * first.predictions.rows)


def mean(
    metric: str,
    predictions: Predictions,
    values: RowFunction,
    proportion: bool = False,
    relabeled: LabelTerms | None = None,
) -> Estimate:
    """Estimate a metric that is the weighted mean of one value for each row.

    Args:
        metric: The name of the metric.
        predictions: The model's predictions.
        values: From a chunk of predictions to (rows,) values.
        proportion: Whether the values are 0 or 1.
        relabeled: The mean as a function of the labels; None if unknown.
    """
    sums: list[tuple[float, float, float]] = []
    for chunk in predictions.chunks():
        row_values = values(chunk)
        if chunk.weights is None:
            sums.append((float(row_values.sum()), chunk.rows, chunk.rows))
            continue
        weights = weights_of(chunk)
        sums.append((inner(weights, row_values), float(weights.sum()), inner(weights, weights)))
    total, weight, squares = (math.fsum(part) for part in zip(*sums, strict=True))
    if weight <= 0:
        return unknown(metric, predictions)
    value, sample_size = total / weight, int(weight * weight / squares)
    scale = predictions.rows / weight * small_sample_correction(sample_size)
    if relabeled is not None and relabeled.shares.max() == 1:
        # No shuffle changes the value if all rows have one label. The mean of the terms differs,
        # because it does not have the rows' weights.
        relabeled = replace(relabeled, expected=value)

    def influence(chunk: Predictions) -> NDArray[np.float64]:
        influence_values = (values(chunk) - value) * scale
        return influence_values if chunk.weights is None else influence_values * weights_of(chunk)

    return Estimate(
        metric, value, predictions, influence, sample_size, proportion, relabeled=relabeled
    )


def with_positive_weight(predictions: Any) -> Any:
    """Return the predictions of rows with a weight above 0; the others carry no information."""
    if predictions.weights is None or predictions.weights.all():
        return predictions
    return predictions[predictions.weights > 0]


def small_sample_correction(sample_size: float) -> float:
    """Return the factor by which a standard deviation of so few rows is too small, at least 1."""
    return math.sqrt(sample_size / max(sample_size - 1, 1))


def t_quantile(level: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution (Abramowitz and Stegun 26.7.5).

    It is exact for 1 and 2 degrees of freedom; to level 0.975, the error is below 1% for 3, and
    0.3% for more.
    """
    if freedom < 2:
        return math.tan(math.pi * (level - 0.5))
    if freedom < 3:  # a fraction is rounded down, which makes the interval wider, not narrower
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


def inner(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the inner product of two vectors, on one core: BLAS would wait for others."""
    return float(np.einsum("i,i->", first, second))


def _sum_of_squares(values: NDArray[np.float64]) -> float:
    return inner(values, values)


def _wilson_interval(share: float, count: float, z: float) -> tuple[float, float]:
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    return max(middle - half, 0.0), min(middle + half, 1.0)
