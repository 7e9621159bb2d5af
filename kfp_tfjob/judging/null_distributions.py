"""Null distributions of a metric: how far chance alone moves it, as a sum of independent terms.

A standard error is estimated from the test rows, so it is far too small where few of them decide. A
model that gives 3 of 300 rows a different score than the others has an AUC with hardly any standard
error. Two null hypotheses avoid it, and under both the metric is a sum of one term for each row:

- *Shuffled labels*: the predictions say nothing about the labels. Each row gets the label of a
  random row, and the metric of the same predictions moves by a term.
- *Swapped models*: two models are equally good. In each row, chance decides which model made which
  prediction, and the gain changes by plus or minus a term.

The many small terms together are approximated by a normal distribution. The large terms are
computed exactly, by the product of their characteristic functions on a grid. There is no random
sampling, so the same models always get the same verdict.

Called by gain_bound.py (swapped models) and metric_uncertainty.py (shuffled labels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, repeat
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_NORMAL = NormalDist()
# Terms above this share of the standard deviation are computed exactly. At the limit, equal terms
# of +-0.08 make steps of 0.16 standard deviations, which move a level of 5% by at most 0.8%.
_LARGE = 0.08
_LARGE_MANY_OUTCOMES = 0.2  # with three outcomes or more, the steps between sums are irregular
MOST_LARGE = int(1 / _LARGE**2)  # their squares sum to the variance, so there are not more
_PER_DEVIATION = 32  # points of the grid; a bound is at most 1/32 of a standard deviation too far
_POINTS = 1024  # so the grid ends at +-16 standard deviations
_ROOTS = np.exp(2j * np.pi * np.arange(_POINTS) / _POINTS)
_FREQUENCIES = np.arange(_POINTS // 2 + 1)
# Rows of a kind, or with a label. With more, the normal approximation is as good as exact counts.
_MOST_EXACT = 10_000
_MOST_SUMS = 4096  # possible sums that are enumerated instead of placed on the grid: 32 kB
_MOST_KINDS = 400  # kinds of terms that are computed exactly; the smaller ones count as normal
_MOST_DRAWN = 600  # kinds of rows times rows, which takes 15 ms
_KINDS_AT_ONCE = 32  # whose points are transformed together: 256 kB
_NO_COUNTS = np.empty(0, np.int64)
_MOST_TAIL_RATIO = 1.2  # of a critical value's whole tail to the level, as `critical` documents
# Of 50 rows of a normal distribution, 7 hold half of the variance, and of more rows, more.
_MANY_ROWS, _FEW_ROWS = 50, 3
_EMPTY = 1e-9  # a grid point with a lower probability contains only rounding errors
_ROUNDING = 1e-26  # of a sum of squares: what rounding errors of float64 may add to it


@dataclass(frozen=True, eq=False)
class ChanceSum:
    """The distribution of a sum with mean zero.

    Attributes:
        deviation: Its standard deviation.
        points: (points,) the sums, ascending; empty for a normal distribution.
        probabilities: (points,) their probabilities.
    """

    deviation: float
    points: _Floats = field(default_factory=lambda: np.empty(0))
    probabilities: _Floats = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of_terms(
        cls, counts: NDArray[np.int64], values: _Floats, shares: _Floats, normal_variance: float
    ) -> ChanceSum:
        """Return the distribution of independent terms plus a normal variable.

        Args:
            counts: (kinds,) the number of terms of each kind.
            values: (kinds, outcomes) the possible values of a term; their mean is zero.
            shares: (outcomes,) the probabilities of these values.
            normal_variance: The variance of the normal variable, which stands for small terms.
        """
        deviation = math.sqrt(float(counts @ (values**2 @ shares)) + normal_variance)
        if not len(counts) or not deviation:
            return cls(deviation)
        terms = float(counts.sum())
        sums = np.prod(counts + 1.0) if len(shares) == 2 else len(shares) ** min(terms, 99.0)
        if sums <= _MOST_SUMS and normal_variance <= 1e-9 * deviation**2:
            return cls(deviation, *_enumerate_sums(counts, values, shares, deviation))
        return cls(deviation, *_compute_on_grid(counts, values, shares, normal_variance, deviation))

    def scaled(self, factor: float) -> ChanceSum:
        """Return the distribution of the sum times a factor above 0."""
        return ChanceSum(self.deviation * factor, self.points * factor, self.probabilities)

    def negative(self) -> ChanceSum:
        """Return the distribution of the negated sum."""
        return ChanceSum(self.deviation, -self.points[::-1], self.probabilities[::-1])

    def critical(self, confidence: float) -> float:
        """Return the least sum that chance reaches with a probability of about 1 - confidence.

        Where possible sums are far apart, the critical value lies between two of them. A sum that
        chance reaches exactly counts half (the mid-p of Lancaster 1961), because a test that counts
        the whole probability detects less than it promises. The whole probability is never above
        1.2 * (1 - confidence).
        """
        if not len(self.points):
            return _NORMAL.inv_cdf(confidence) * self.deviation
        possible = self.probabilities > _EMPTY
        points, probabilities = self.points[possible], self.probabilities[possible]
        at_least = np.cumsum(probabilities[::-1])[::-1]
        level = 1 - confidence
        passes = (at_least - probabilities / 2 <= level) & (at_least <= _MOST_TAIL_RATIO * level)
        rare = int(np.argmax(np.append(passes, True)))
        if rare == 0:
            return float(points[0])
        last = float(points[rare - 1])
        if rare == len(points):
            return last + self.deviation / _PER_DEVIATION + 1e-9 * abs(last)
        return (last + float(points[rare])) / 2

    def tail(self, value: float) -> float:
        """Return the p-value of gain_bound.py: the probability that the sum is at least `value`."""
        if not self.deviation:
            return float(value <= 0)
        if not len(self.points):
            return math.erfc(value / self.deviation / math.sqrt(2)) / 2
        # A point stands for sums up to half a step of the grid above and below it.
        half_step = self.deviation / _PER_DEVIATION / 2
        tail = float(self.probabilities[self.points >= value - half_step].sum())
        return min(1.0, max(0.0, tail))


def _enumerate_sums(
    counts: NDArray[np.int64], values: _Floats, shares: _Floats, deviation: float
) -> tuple[_Floats, _Floats]:
    """Return all sums of a few terms, ascending, and their probabilities."""
    points, probabilities = np.zeros(1), np.ones(1)
    for count, outcomes in zip(counts.tolist(), values, strict=True):
        for kind_points, kind_probabilities in _sums_of_equal_terms(count, outcomes, shares):
            points = np.add.outer(points, kind_points).ravel()
            probabilities = np.multiply.outer(probabilities, kind_probabilities).ravel()
            order = np.argsort(points, kind="stable")
            points, probabilities = points[order], probabilities[order]
            starts = np.flatnonzero(np.diff(points, prepend=-np.inf) > 1e-9 * deviation)
            points, probabilities = points[starts], np.add.reduceat(probabilities, starts)
    return points, probabilities


def _sums_of_equal_terms(
    count: int, outcomes: _Floats, shares: _Floats
) -> Iterator[tuple[_Floats, _Floats]]:
    """Yield distributions, as points and probabilities, that add up to `count` equal terms.

    Terms with two outcomes add up to one binomial distribution; others are yielded one by one.
    """
    if len(outcomes) != 2:
        yield from repeat((outcomes, shares), count)
        return
    numbers = np.arange(count + 1)
    ways = np.array([_log_choose(count, number) for number in numbers.tolist()])
    logs = ways + (count - numbers) * math.log(shares[0]) + numbers * math.log(shares[1])
    yield (count - numbers) * outcomes[0] + numbers * outcomes[1], np.exp(logs)


def _compute_on_grid(
    counts: NDArray[np.int64],
    values: _Floats,
    shares: _Floats,
    normal_variance: float,
    deviation: float,
) -> tuple[_Floats, _Floats]:
    """Return the sums on a grid and their probabilities, by the terms' Fourier transform."""
    grid = _Grid.of(counts, values, shares, deviation)
    transform = np.ones(len(_FREQUENCIES), np.complex128)
    if len(shares) == 2:
        factors = _ROOTS[grid.kinds[:, None, :] * _FREQUENCIES[:, None] % _POINTS] @ shares
        transform *= np.prod(factors ** grid.numbers[:, None], axis=0)
    else:
        for start in range(0, len(grid.kinds), _KINDS_AT_ONCE):
            kinds = grid.kinds[start : start + _KINDS_AT_ONCE]
            numbers = grid.numbers[start : start + _KINDS_AT_ONCE]
            placed = np.zeros((len(kinds), _POINTS))
            np.add.at(placed, (np.arange(len(kinds))[:, None], kinds), shares)
            factors = np.fft.rfft(placed).conj()
            transform *= np.prod(factors ** numbers[:, None], axis=0)
    return grid.sums(transform, normal_variance)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Terms rounded to multiples of a step.

    The grid begins where every term has its lowest value, so that this sum is exact, and the sums
    of many equal terms fall on grid points.

    Attributes:
        step: The distance of two points.
        kinds: (kinds, outcomes) each outcome's steps above the lowest value of its term.
        numbers: (kinds,) the number of terms of each kind.
        mean: The mean of their sum, in steps.
        exact: The mean before the terms were rounded to the grid, above the lowest sum.
    """

    step: float
    kinds: NDArray[np.int64]
    numbers: NDArray[np.float64]
    mean: float
    exact: float

    @classmethod
    def of(
        cls, counts: NDArray[np.int64], values: _Floats, shares: _Floats, deviation: float
    ) -> _Grid:
        """Return the grid of these terms, whose arguments `ChanceSum.of_terms` describes."""
        rises = values - values.min(axis=1)[:, None]
        # The step divides the kind with the most variance, so that this kind is not rounded.
        largest = float(rises[np.argmax(counts * (values**2 @ shares))].max())
        step = largest / max(round(largest / (deviation / _PER_DEVIATION)), 1)
        steps = np.clip(np.rint(rises / step), 0, _POINTS // 2 - 1).astype(np.int64)
        kinds, kind_of_term = np.unique(steps, axis=0, return_inverse=True)
        numbers = np.asarray(np.bincount(kind_of_term.ravel(), counts, len(kinds)), np.float64)
        mean, exact = float(numbers @ (kinds @ shares)), float(counts @ (rises @ shares))
        return cls(step, kinds, numbers, mean, exact)

    def sums(
        self, transform: NDArray[np.complex128], normal_variance: float
    ) -> tuple[_Floats, _Floats]:
        """Return the centered sums and their probabilities, both (points,).

        Args:
            transform: (frequencies,) the Fourier transform of the sum's distribution.
            normal_variance: The variance of the normal variable that stands for small terms.
        """
        angles = 2 * np.pi * _FREQUENCIES / _POINTS
        transform = transform * np.exp(-0.5 * normal_variance / self.step**2 * angles**2)
        # The discrete transform is periodic, so the period around the mean is the right one.
        offsets = np.arange(_POINTS) + round(self.mean) - _POINTS // 2
        probabilities = np.fft.irfft(transform.conj(), _POINTS)[offsets % _POINTS]
        # Rounding to the grid changes the mean.
        points = offsets * (self.exact / self.mean) - self.exact
        return np.asarray(points, np.float64), np.maximum(probabilities, 0.0).astype(np.float64)


def _hypergeometric(step: float, rows: int, label_rows: int, kind_rows: int) -> ChanceSum:
    """Return the centered distribution of `step` times the number of a kind's rows with a label.

    Args:
        step: A factor.
        rows: The number of all rows.
        label_rows: The number of rows with the label.
        kind_rows: The number of rows of the kind.
    """
    low, high = max(0, label_rows + kind_rows - rows), min(label_rows, kind_rows)
    counts = np.arange(low, high + 1.0)
    below = counts[1:]
    odds = np.log(label_rows - below + 1) + np.log(kind_rows - below + 1)
    odds -= np.log(below) + np.log(rows - label_rows - kind_rows + below)
    logs = np.concatenate([[0.0], np.cumsum(odds)])
    probabilities = np.exp(logs - logs.max())
    probabilities /= probabilities.sum()
    points = (counts - label_rows * kind_rows / rows) * step
    if step < 0:
        points, probabilities = points[::-1], probabilities[::-1]
    return ChanceSum(math.sqrt(float(points**2 @ probabilities)), points, probabilities)


def blend(error_bound: float, critical: float, gain: float) -> float:
    """Return the distance of a confidence bound from a gain above 0.

    Far from 0, it is `error_bound`, which comes from the standard error. The bound is above 0 only
    if chance alone does not explain the gain, which means `critical < gain`. In between, the
    variance changes with the square of the distance.

    Args:
        error_bound: A quantile times the standard error.
        critical: The critical value of the gain under the null hypothesis.
        gain: The distance of the value from a model without a gain.
    """
    widest = max(error_bound, critical)
    shifted_square = gain**2 + error_bound**2 - critical**2
    if gain <= 0 or critical <= 0 or shifted_square <= 0:
        return widest
    return min(error_bound * gain / math.sqrt(shifted_square), widest)


@dataclass(frozen=True, eq=False)
class Swaps:
    """The gain between two equally good models, where chance swaps their predictions in each row.

    Attributes:
        chance: The distribution of the gain.
        gains: The sum of the positive terms.
        losses: The sum of the negative terms, as a positive number.
        decisive: The number of rows that contribute half of the variance, if these are very few of
            many rows; otherwise 0.
    """

    chance: ChanceSum
    gains: float
    losses: float
    decisive: int = 0

    @classmethod
    def of(cls, terms: Iterator[_Floats]) -> Swaps:
        """Compute the distribution from each row's part of the gain.

        Args:
            terms: (rows,) arrays, one for each chunk: the part of the gain that is due to a row.
        """
        squares, gains, losses, differing = [], [], [], 0
        largest = np.empty(0)
        for chunk in terms:
            squares.append(float(np.einsum("i,i->", chunk, chunk)))
            gains.append(float(chunk[chunk > 0].sum()))
            losses.append(-float(chunk[chunk < 0].sum()))
            differing += int(np.count_nonzero(chunk))
            sizes = np.concatenate([largest, np.abs(chunk)])
            if len(sizes) > MOST_LARGE:
                sizes = np.partition(sizes, len(sizes) - MOST_LARGE)[-MOST_LARGE:]
            largest = sizes
        variance = math.fsum(squares)
        large = np.sort(largest[largest > _LARGE * math.sqrt(variance)])
        normal_variance = max(variance - float(large @ large), 0.0)
        normal_variance = normal_variance if normal_variance > 1e-9 * variance else 0.0
        counts = np.ones(len(large), np.int64)
        chance = ChanceSum.of_terms(
            counts, np.stack([large, -large], axis=1), np.full(2, 0.5), normal_variance
        )
        holds_half = np.cumsum(large[::-1] ** 2) > variance / 2
        decisive = int(np.argmax(holds_half)) + 1 if holds_half.any() else MOST_LARGE
        few_decide = differing >= _MANY_ROWS and decisive <= _FEW_ROWS
        return cls(chance, math.fsum(gains), math.fsum(losses), decisive if few_decide else 0)

    def scaled(self, factor: float) -> Swaps:
        """Return the swaps with all terms multiplied by a factor above 0."""
        gains, losses = self.gains * factor, self.losses * factor
        return Swaps(self.chance.scaled(factor), gains, losses, self.decisive)


@dataclass(frozen=True, eq=False)
class LabelTerms:
    """The metric of fixed predictions as a function of the rows' labels: one term for each row.

    Attributes:
        shares: (labels,) each label's share of the rows' weight.
        spreads: (labels,) each label's share of the squared weights, where the mean weight is 1;
            equal to `shares` where all rows count the same.
        blocks: Yields the number of rows of each kind, (kinds,), and the term that a row of a kind
            adds to the metric with each label, (kinds, labels).
        expected: The mean of the metric over all shuffles; NaN where it is the mean of the terms.
        extra_variance: Variance of the metric beyond the variance of its terms.
    """

    shares: _Floats
    spreads: _Floats
    blocks: Callable[[], Iterator[tuple[NDArray[np.int64], _Floats]]]
    expected: float = math.nan
    extra_variance: float = 0.0

    @cached_property
    def mean(self) -> float:
        """The mean of the sum of all terms over all shuffles."""
        parts = (counts @ (values @ self.shares) for counts, values in self.blocks())
        return math.fsum(float(part) for part in parts)

    @property
    def expected_value(self) -> float:
        """The mean of the metric over all shuffles."""
        return self.mean if math.isnan(self.expected) else self.expected

    def shuffled(self) -> ChanceSum:
        """Return the centered distribution of the metric if the labels are shuffled."""
        if (exact := self._exact_for_two_kinds()) is not None:
            return exact
        rows, totals, raw = 0, np.zeros(len(self.shares)), 0.0
        for counts, values in self.blocks():
            rows += int(counts.sum())
            totals += counts @ values
            raw += float((counts @ values**2) @ self.shares)
        # A shuffle keeps the number of each label, so a common part of all rows cancels out.
        common = totals / rows
        common -= common @ self.shares

        def centered() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
            for counts, values in self.blocks():
                yield counts, values - (values @ self.shares)[:, None] - common

        parts = [(counts @ values**2) for counts, values in centered()]
        squares = np.sum(parts, axis=0)  # (labels,)
        plain, spread = float(squares @ self.shares), float(squares @ self.spreads)
        # Shuffling draws without replacement, hence rows - 1. Weights make the terms vary more.
        variance = spread * rows / max(rows - 1, 1)
        # Where no shuffle changes the metric, `plain` contains only the rounding errors of `raw`.
        if plain <= _ROUNDING * raw or not variance:
            return ChanceSum(math.sqrt(self.extra_variance))
        scale = math.sqrt(variance / plain)
        deviation = math.sqrt(variance + self.extra_variance)
        least = (_LARGE if len(totals) == 2 else _LARGE_MANY_OUTCOMES) * deviation / scale
        if self._depends_on_label_count:
            label_rows = round(float(self.shares[1]) * rows)
            if drawn := _draw_without_replacement(
                _large_terms(centered(), least), rows, label_rows, variance
            ):
                return drawn
        counts, values = _large_kinds(centered(), len(totals), least, scale, deviation)
        normal_variance = (
            max(variance - float(counts @ (values**2 @ self.shares)), 0.0) + self.extra_variance
        )
        normal_variance = normal_variance if normal_variance > 1e-9 * deviation**2 else 0.0
        return ChanceSum.of_terms(counts, values, self.shares, normal_variance)

    @property
    def _depends_on_label_count(self) -> bool:
        """Whether the metric depends only on each kind's number of rows with the second label."""
        equal = np.abs(self.shares - self.spreads).max() < 1e-9
        return bool(len(self.shares) == 2 and not self.extra_variance and equal)

    def _exact_for_two_kinds(self) -> ChanceSum | None:
        """Return the exact distribution for two labels and two kinds of rows; otherwise None."""
        if not self._depends_on_label_count:
            return None
        first, *further_blocks = list(islice(self.blocks(), 2))
        counts, values = first
        if further_blocks or len(counts) != 2 or not counts.all():
            return None
        rows = int(counts.sum())
        label_rows = round(float(self.shares[1]) * rows)
        if min(label_rows, rows - label_rows, *counts) > _MOST_EXACT:
            return None
        rise = values[:, 1] - values[:, 0]
        return _hypergeometric(float(rise[1] - rise[0]), rows, label_rows, int(counts[1]))


def _draw_without_replacement(
    terms: Iterator[tuple[NDArray[np.int64], _Floats]], rows: int, label_rows: int, variance: float
) -> ChanceSum | None:
    """Return the distribution for two labels if only a few kinds of rows have large terms.

    This happens where most rows have the same score. Labels are then drawn without replacement for
    a few decisive rows, so their terms are not independent. The distribution is the product of
    independent terms, corrected by the probability of each number of these rows with the label.

    Args:
        terms: Counts and values of the rows with large terms; the mean of all rows is zero.
        rows: The number of all rows.
        label_rows: The number of all rows with the second label.
        variance: The variance of the sum over all rows.

    Returns:
        The distribution; None if too many rows have large terms, or the computation would take
        more than about 15 ms.
    """
    blocks, large_rows = [], 0
    for block in terms:
        blocks.append(block)
        large_rows += int(block[0].sum())
        if large_rows > MOST_LARGE:
            return None
    share, other_rows = label_rows / rows, rows - large_rows
    if not large_rows or not other_rows or not 0 < share < 1:
        return None
    counts = np.concatenate([block[0] for block in blocks])
    rises = np.concatenate([block[1][:, 1] - block[1][:, 0] for block in blocks])
    # A rise that all rows share cancels out, so the other rows' mean rise is subtracted.
    common_rise = -float(counts @ rises) / other_rows
    variance_per_square = share * (1 - share) * rows / (rows - 1)
    squares = (
        variance / variance_per_square - float(counts @ rises**2) - other_rows * common_rise**2
    )
    normal_variance = max(variance_per_square * squares, 0.0)
    normal_variance = normal_variance if normal_variance > 1e-9 * variance else 0.0
    deviation, shares = math.sqrt(variance), np.array([1 - share, share])
    values = np.stack([np.zeros(len(rises)), rises - common_rise], axis=1)
    grid = _Grid.of(counts, values, shares, deviation)
    if len(grid.kinds) * (large_rows + 1) > _MOST_DRAWN:
        return None
    labeled = np.arange(max(0, label_rows - other_rows), min(label_rows, large_rows) + 1)
    # Log ratio: `number` of the large rows have the label, drawn without / with replacement.
    odds = [
        _log_choose(other_rows, label_rows - number)
        - _log_choose(rows, label_rows)
        - number * math.log(share)
        - (large_rows - number) * math.log1p(-share)
        for number in labeled.tolist()
    ]
    # A polynomial in `unit`: its coefficient of power j belongs to j large rows with the label.
    unit = np.exp(2j * np.pi * np.arange(large_rows + 1) / (large_rows + 1))
    label_factors = shares * _ROOTS[grid.kinds[:, None, :] * _FREQUENCIES[:, None] % _POINTS]
    factors = label_factors[:, :, :1] + label_factors[:, :, 1:] * unit
    product = np.prod(factors ** grid.numbers[:, None, None], axis=0)
    parts = np.fft.fft(product, axis=1)[:, labeled] / (large_rows + 1)
    return ChanceSum(deviation, *grid.sums(parts @ np.exp(odds), normal_variance))


def _log_choose(of: int, number: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)


def _large_terms(
    blocks: Iterator[tuple[NDArray[np.int64], _Floats]], least: float
) -> Iterator[tuple[NDArray[np.int64], _Floats]]:
    """Yield the counts and values of the terms that may be above `least`."""
    for counts, values in blocks:
        # A cut whose rows all have the weight 0 has a term, but a count of 0.
        large = (np.abs(values).max(axis=1, initial=0) > least) & (counts > 0)
        if large.any():
            yield counts[large], values[large]


def _large_kinds(
    blocks: Iterator[tuple[NDArray[np.int64], _Floats]],
    labels: int,
    least: float,
    scale: float,
    deviation: float,
) -> tuple[NDArray[np.int64], _Floats]:
    """Return the large terms' (kinds,) counts and (kinds, labels) values.

    Terms whose values round to the same points of the grid are of one kind. The values of a kind
    are the means of its terms.

    Args:
        blocks: Counts and values by chunk.
        labels: The number of labels.
        least: Terms whose values are all below this one are small.
        scale: A factor of all values that are returned.
        deviation: The standard deviation of the sum.
    """
    step = deviation / _PER_DEVIATION
    # By the kind's points on the grid: the number of its terms, and the sum of their values.
    totals: dict[tuple[int, ...], tuple[int, _Floats]] = {}
    for counts, values in _large_terms(blocks, least):
        scaled = values * scale
        points = np.rint(scaled / step).astype(np.int64)
        kinds, kind_of_term = np.unique(points, axis=0, return_inverse=True)
        kind_of_term = kind_of_term.ravel()
        numbers = np.bincount(kind_of_term, counts, len(kinds)).astype(np.int64)
        sums = np.stack(
            [np.bincount(kind_of_term, counts * column, len(kinds)) for column in scaled.T], 1
        )
        for kind, number, kind_sum in zip(kinds.tolist(), numbers.tolist(), sums, strict=True):
            previous = totals.get(tuple(kind), (0, 0.0))
            totals[tuple(kind)] = previous[0] + number, previous[1] + kind_sum
    if not totals:
        return _NO_COUNTS, np.empty((0, labels))
    kind_counts = np.array([number for number, _ in totals.values()], np.int64)
    means = np.stack([kind_sum / number for number, kind_sum in totals.values()])
    if len(kind_counts) > _MOST_KINDS:  # with many labels; the caller counts the others as normal
        chosen = np.argsort(-kind_counts * (means**2).max(axis=1), kind="stable")[:_MOST_KINDS]
        kind_counts, means = kind_counts[chosen], means[chosen]
    return kind_counts, means
