"""Compares two models on the same test rows: is the challenger better, beyond chance?

Against the champion, the null hypothesis is that both models are equally good, so chance decides in
each row which model made which prediction (null_distributions.py). A row with equal predictions
does not count, and rows that are hard for both models cancel out. For a share of rows, this is
McNemar's exact test; for a mean, it is the permutation test of pairs; for the AUC, it is the
permutation test of the pairs' contributions. There is no random sampling. Where rows have groups,
chance decides in each group.

Against a baseline, which ignores the columns, there is a second null hypothesis: the predictions
say nothing about the labels. For metrics of hits, this is Fisher's exact test; for the AUC, it is
Wilcoxon's.

Called by gate.py for all test rows and by slice_checks.py for each slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

from .metric_uncertainty import Estimate, swap_terms
from .metrics import Measures
from .null_distributions import ChanceSum, Swaps, blend

# With fewer rows, a standard error is itself a guess.
LEAST_ROWS = 10
# The probability of detecting the smallest detectable difference.
_POWER = 0.8
_ROUNDING = 1e-9  # of a gain: what sums of rows in another order may differ by
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Comparison:
    """The challenger compared with a reference model, by one metric.

    Attributes:
        metric: The metric.
        challenger: The challenger's value.
        reference: The value of the champion or the baseline.
        gain: How much better the challenger is; above 0 is better for every metric.
        low: One-sided lower bound of the gain at `confidence`; NaN when unknown.
        high: One-sided upper bound.
        detectable: The smallest true gain that a test with these rows would detect 8 times in 10.
        effective_sample_size: The number of rows behind the metric; for the AUC, the smaller
            class's rows. At most the number of groups, where rows have groups.
        confidence: The confidence of each bound.
        tail: From a gain to the probability that chance alone shows at least this gain.
        with_baseline: Whether the reference ignores the columns.
        with_guess: Whether the reference is a guess that names each class as often as the
            challenger.
        decisive: The number of rows that contribute half of the variance, if these are very few of
            many rows; otherwise 0.
        unit: What is independent: a `row` or a `group`.
    """

    metric: str
    challenger: float
    reference: float
    gain: float
    low: float
    high: float
    detectable: float
    effective_sample_size: int
    confidence: float
    tail: Callable[[float], float] | None = None
    with_baseline: bool = False
    with_guess: bool = False
    decisive: int = 0
    unit: str = "row"

    @property
    def has_bound(self) -> bool:
        """Whether there are enough rows for a bound."""
        return math.isfinite(self.low)

    def chance_of_loss(self, margin: float) -> float:
        """Return the p-value of a loss: the probability that chance alone shows this loss.

        Args:
            margin: The true loss that is accepted, in units of the metric.

        Returns:
            The one-sided p-value of "the true gain is not below minus the margin"; NaN when
            unknown.
        """
        if not self.has_bound or self.tail is None:
            return math.nan
        return self.tail(-(self.gain + margin))

    def without_contradiction(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return the interval of the challenger's value, which must not contain the baseline's.

        A paired comparison is more precise than an interval from the rows alone. Where the interval
        contains the baseline's value although the bound of the gain is above 0, it is shortened to
        that bound, so that the report and the verdict agree.

        Args:
            interval: The two-sided interval of the value.
        """
        low, high = interval
        if not self.with_baseline or not self.low > 0 or not low <= self.reference <= high:
            return interval
        if self.challenger > self.reference:
            return self.reference + self.low, high
        return low, self.reference - self.low


def compare(
    challenger: Measures,
    reference: Measures,
    metric: str,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models on the same rows in the same order.

    Args:
        challenger: The new model.
        reference: The champion. If it predicts the same for all rows, it counts as a baseline.
        metric: A metric of the task.
        confidence: The confidence of each one-sided bound, for example 0.95.
    """
    estimate, reference_estimate = challenger.estimate(metric), reference.estimate(metric)
    if reference.predictions.constant and not estimate.against_guess:
        # A champion may be constant within a slice. Swapping predictions assumes that the models
        # are exchangeable, and a constant model is not.
        return compare_with_baseline(challenger, reference, metric, confidence)
    gain = estimate.sign * (estimate.value - reference_estimate.value)
    sample_size = min(estimate.effective_sample_size, reference_estimate.effective_sample_size)
    if not math.isfinite(gain) or sample_size < LEAST_ROWS:
        return _unknown_comparison(
            estimate, reference_estimate.value, gain, sample_size, confidence
        )
    swaps = _swap_models(estimate, reference_estimate, gain, confidence)
    chance = swaps.chance
    critical = chance.critical(confidence)
    standard_error = math.sqrt(max(chance.deviation**2 - gain**2 / sample_size, 0.0))
    comparison = _build_comparison(
        estimate,
        reference_estimate.value,
        gain,
        sample_size,
        confidence,
        chance,
        critical,
        standard_error,
    )
    if gain <= 0:
        loss_bound = _rare_loss_bound(swaps, confidence)
        comparison = replace(comparison, low=min(comparison.low, -loss_bound))
    return replace(comparison, decisive=swaps.decisive)


def compare_with_baseline(
    challenger: Measures,
    baseline: Measures,
    metric: str,
    confidence: float = 0.95,
) -> Comparison:
    """Compare a model with one that ignores the columns.

    Args:
        challenger: The model.
        baseline: The trivial model, on the same rows. For a metric that depends on how often a
            class is named, such as a recall, it is a guess that names each class as often as the
            model does.
        metric: A metric of the task.
        confidence: The confidence of each one-sided bound.
    """
    estimate, baseline_estimate = challenger.estimate(metric), baseline.estimate(metric)
    reference = (
        estimate.of_constant if math.isfinite(estimate.of_constant) else baseline_estimate.value
    )
    gain = estimate.sign * (estimate.value - reference)
    if not math.isfinite(gain) or estimate.effective_sample_size < LEAST_ROWS:
        return _unknown_comparison(
            estimate, reference, gain, estimate.effective_sample_size, confidence
        )
    standard_error, decisive = estimate.standard_error, 0
    candidates: list[tuple[float, ChanceSum]] = []
    if estimate.by_chance is not None:
        mean, shuffled = estimate.by_chance
        shuffled = shuffled if estimate.sign > 0 else shuffled.negative()
        candidates.append((estimate.sign * (mean - reference), shuffled))
    is_grouped = estimate.predictions.group_count > 0
    if is_grouped and estimate.influence is not None:
        # Few groups may decide, which a standard error does not show: chance gives the influence of
        # each group its sign (the wild cluster bootstrap of Cameron, Gelbach and Miller 2008).
        candidates.append((0.0, Swaps.of(iter([estimate.influence_by_group])).chance))
    differs = not math.isfinite(estimate.of_constant)
    # With more than 1,000 classes, the distribution of shuffled labels is unknown.
    if differs or not candidates or (is_grouped and baseline_estimate.influence is not None):
        swaps = _swap_models(estimate, baseline_estimate, gain, confidence)
        candidates.append((0.0, swaps.chance))
    if differs:
        decisive = swaps.decisive
        standard_error = math.sqrt(
            max(swaps.chance.deviation**2 - gain**2 / estimate.effective_sample_size, 0.0)
        )
    mean, chance = max(candidates, key=lambda part: part[0] + part[1].critical(confidence))
    critical = mean + chance.critical(confidence)
    comparison = _build_comparison(
        estimate,
        reference,
        gain,
        estimate.effective_sample_size,
        confidence,
        chance,
        critical,
        standard_error,
    )
    return replace(
        comparison,
        with_baseline=True,
        with_guess=estimate.against_guess,
        decisive=decisive,
    )


def _swap_models(
    challenger: Estimate, reference: Estimate, gain: float, confidence: float
) -> Swaps:
    """Return the distribution of the gain if the two models are equally good.

    The terms are a linear approximation. Where the metric is curved, as a root of a mean of squares
    is, a large gain differs from their sum, and all terms are scaled to match it.
    """
    terms = (challenger.sign * part for part in swap_terms(challenger, reference))
    if challenger.predictions.group_count:
        terms = iter([challenger.predictions.sums_by_group(terms)])
    swaps = Swaps.of(terms)
    total = swaps.gains - swaps.losses
    is_curved = total * gain > 0 and abs(total) > swaps.chance.critical(confidence) / 2
    return swaps.scaled(gain / total) if is_curved else swaps


def _unknown_comparison(
    estimate: Estimate, reference: float, gain: float, sample_size: int, confidence: float
) -> Comparison:
    nan = math.nan
    return Comparison(
        estimate.metric,
        estimate.value,
        reference,
        gain,
        nan,
        nan,
        nan,
        sample_size,
        confidence,
        unit=_unit(estimate),
    )


def _unit(estimate: Estimate) -> str:
    return "group" if estimate.predictions.group_count else "row"


def _build_comparison(
    estimate: Estimate,
    reference: float,
    gain: float,
    sample_size: int,
    confidence: float,
    chance: ChanceSum,
    critical: float,
    standard_error: float,
) -> Comparison:
    """Return the comparison, with its bounds and its smallest detectable gain.

    Args:
        estimate: The challenger's estimate.
        reference: The reference model's value.
        gain: The gain.
        sample_size: The effective sample size.
        confidence: The confidence of each bound.
        chance: The distribution of the gain under the null hypothesis.
        critical: The gain that chance exceeds with a probability of at most 1 - confidence.
        standard_error: The standard error of the gain.
    """
    bound_distance = blend(_NORMAL.inv_cdf(confidence) * standard_error, critical, abs(gain))
    low = gain - bound_distance
    if abs(low) <= _ROUNDING * abs(gain):
        low = 0.0  # the gain is the critical value: it does not pass because of a rounding error
    return Comparison(
        estimate.metric,
        estimate.value,
        reference,
        gain,
        low,
        gain + bound_distance,
        critical + _NORMAL.inv_cdf(_POWER) * standard_error,
        sample_size,
        confidence,
        chance.tail,
        unit=_unit(estimate),
    )


def _rare_loss_bound(swaps: Swaps, confidence: float) -> float:
    """Return the largest loss that rows with few or no losses do not exclude.

    It is the score bound of Tango (1998) for the difference of two rare counts, plus 0.3 rows. With
    these, it equals the Poisson bound for a count of 0 or 1. Counts are the sums of gains and
    losses, divided by the typical size of a row's term.
    """
    if not swaps.gains + swaps.losses:
        return 0.0
    size = swaps.chance.deviation**2 / (swaps.gains + swaps.losses)
    better, worse = swaps.gains / size, swaps.losses / size
    quantile = _NORMAL.inv_cdf(confidence)

    def excluded(loss: float) -> bool:
        linear = 2 * loss - better - worse
        rate = (math.sqrt(linear**2 + 8 * better * loss) - linear) / 4
        return better - worse + loss > quantile * math.sqrt(2 * rate + loss)

    low, high = 0.0, worse + 4 * quantile**2 + 4 * quantile * math.sqrt(better + worse)
    for _ in range(60):  # bisection to the precision of a float
        middle = (low + high) / 2
        low, high = (low, middle) if excluded(middle) else (middle, high)
    return (high + 0.3) * size
