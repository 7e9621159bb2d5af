"""Compares two models on the same test rows: is the challenger better, beyond chance?

Against another model, the question is how often chance alone shows such a gain if both are equally
good, so that in each row chance decides which of them predicted what (chance.py). Rows for which
both predict the same do not count, and rows that are hard for both cancel out. For a share of rows,
this is McNemar's exact test; for a mean, it is the permutation test of pairs; for the AUC, it is
the same with the pairs' contributions. There is no random sampling.

Against a baseline, which ignores the columns, there is a second question: how often does a model
whose predictions say nothing about the labels show such a gain? For metrics of hits, it is Fisher's
exact test, and for the AUC that of Wilcoxon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

from kfp_tfjob.judging.chance import ChanceSum, Swaps, blend
from kfp_tfjob.judging.estimates import Estimate, swap_terms
from kfp_tfjob.judging.metrics import Measures

# With fewer rows, a standard error is itself a guess.
LEAST_ROWS = 10
# The probability of detecting the smallest detectable difference.
_POWER = 0.8
_NORMAL = NormalDist()


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
        tail: From a gain to the probability that chance alone shows at least this one.
        with_baseline: Whether the other one ignores the columns.
        with_guess: Whether it is a guess that names each class as often as the challenger.
        decisive: How many rows hold half of the variance, if they are very few of many; else 0.
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
    tail: Callable[[float], float] | None = None
    with_baseline: bool = False
    with_guess: bool = False
    decisive: int = 0

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
        if not self.known or self.tail is None:
            return math.nan
        return self.tail(-(self.gain + margin))

    def without_contradiction(self, interval: tuple[float, float]) -> tuple[float, float]:
        """Return the interval of the challenger's value, which must not contain the baseline's.

        An interval from the rows alone knows less than a paired comparison. Where it contains the
        baseline's value, although the bound of the gain is above 0, it ends at that bound: this is
        what is known of a value with these labels.

        Args:
            interval: The two-sided interval of the value.
        """
        low, high = interval
        if not self.with_baseline or not self.low > 0 or not low <= self.other <= high:
            return interval
        if self.challenger > self.other:
            return self.other + self.low, high
        return low, self.other - self.low


def compare(
    challenger: Measures,
    other: Measures,
    metric: str,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models on the same rows in the same order.

    Args:
        challenger: The new model.
        other: The champion. If it predicts the same for all rows, it is compared as a baseline.
        metric: A metric of the task.
        confidence: The confidence of each one-sided bound, for example 0.95.
    """
    ours, theirs = challenger.estimate(metric), other.estimate(metric)
    if other.predictions.constant and not ours.against_guess:
        # So may a champion be within a slice, and two models that differ so are not exchangeable.
        return compare_with_baseline(challenger, other, metric, confidence)
    gain = ours.sign * (ours.value - theirs.value)
    support = min(ours.support, theirs.support)
    if not math.isfinite(gain) or support < LEAST_ROWS:
        return _unknown(ours, theirs.value, gain, support, confidence)
    swaps = _swapped(ours, theirs, gain, confidence)
    chance = swaps.chance
    critical = chance.critical(confidence)
    spread = math.sqrt(max(chance.deviation**2 - gain**2 / support, 0.0))
    comparison = _comparison(
        ours, theirs.value, gain, support, confidence, chance, critical, spread
    )
    if gain <= 0:
        rare = _rare_losses(swaps, confidence)
        comparison = replace(comparison, low=min(comparison.low, -rare))
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
    ours, theirs = challenger.estimate(metric), baseline.estimate(metric)
    other = ours.of_constant if math.isfinite(ours.of_constant) else theirs.value
    gain = ours.sign * (ours.value - other)
    if not math.isfinite(gain) or ours.support < LEAST_ROWS:
        return _unknown(ours, other, gain, ours.support, confidence)
    spread, decisive = ours.standard_error, 0
    parts: list[tuple[float, ChanceSum]] = []
    if ours.by_chance is not None:
        mean, shuffled = ours.by_chance
        shuffled = shuffled if ours.sign > 0 else shuffled.negative()
        parts.append((ours.sign * (mean - other), shuffled))
    if not math.isfinite(ours.of_constant):
        swaps = _swapped(ours, theirs, gain, confidence)
        decisive = swaps.decisive
        spread = math.sqrt(max(swaps.chance.deviation**2 - gain**2 / ours.support, 0.0))
        parts.append((0.0, swaps.chance))
    mean, chance = max(parts, key=lambda part: part[0] + part[1].critical(confidence))
    critical = mean + chance.critical(confidence)
    comparison = _comparison(ours, other, gain, ours.support, confidence, chance, critical, spread)
    return replace(
        comparison,
        with_baseline=True,
        with_guess=ours.against_guess,
        decisive=decisive,
    )


def _swapped(ours: Estimate, theirs: Estimate, gain: float, confidence: float) -> Swaps:
    """Return the gain by chance between two models.

    The terms are those of a straight line. Far from 0, their sum is another one than the gain, for
    example for the root of a mean of squares, and all of them are stretched to fit.
    """
    swaps = Swaps.of(ours.sign * terms for terms in swap_terms(ours, theirs))
    total = swaps.gains - swaps.losses
    stretched = total * gain > 0 and abs(total) > swaps.chance.critical(confidence) / 2
    return swaps.scaled(gain / total) if stretched else swaps


def _unknown(
    ours: Estimate, other: float, gain: float, support: int, confidence: float
) -> Comparison:
    nan = math.nan
    return Comparison(ours.metric, ours.value, other, gain, nan, nan, nan, support, confidence)


def _comparison(
    ours: Estimate,
    other: float,
    gain: float,
    support: int,
    confidence: float,
    chance: ChanceSum,
    critical: float,
    spread: float,
) -> Comparison:
    """Return the comparison.

    Args:
        ours: The challenger's estimate.
        other: The other model's value.
        gain: The gain.
        support: The number of rows behind it.
        confidence: The confidence of each bound.
        chance: The gain by chance.
        critical: What chance exceeds with a probability of at most 1 - confidence.
        spread: The standard error of the gain.
    """
    reach = blend(_NORMAL.inv_cdf(confidence) * spread, critical, abs(gain))
    return Comparison(
        ours.metric,
        ours.value,
        other,
        gain,
        gain - reach,
        gain + reach,
        critical + _NORMAL.inv_cdf(_POWER) * spread,
        support,
        confidence,
        chance.tail,
    )


def _rare_losses(swaps: Swaps, confidence: float) -> float:
    """Return the loss that such rows do not exclude, although few or none of them show one.

    It is the score bound of Tango (1998) for the difference of two rare counts, and 0.3 rows more,
    with which it is that of Poisson for none or one. A count is in rows of the usual size.
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
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if excluded(middle) else (middle, high)
    return (high + 0.3) * size
