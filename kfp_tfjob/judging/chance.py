"""What chance alone does to a metric: the distribution of a sum of independent terms.

A standard error comes from the rows at hand, so it is far too small where few of them decide: a
model that gives 3 of 300 rows another score than all others has an AUC with hardly any standard
error. Two questions have an answer that does not depend on it, and both are sums of one term for
each row:

- *Shuffled labels*: how would a model do whose predictions say nothing about the labels? Each row
  gets the label of a random row, and the metric of the same predictions moves by a term.
- *Swapped models*: how would two equally good models differ? In each row, chance decides which of
  the two predicted what, and the gain changes by plus or minus a term.

Rows that hardly count behave like a normal distribution together. The others are computed exactly,
by the product of their characteristic functions on a grid. There is no random sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_NORMAL = NormalDist()
# Terms above this share of the standard deviation are computed exactly. At the limit, equal terms
# of +-0.08 make steps of 0.16 standard deviations, which move a level of 5% by at most 0.8%.
_LARGE = 0.08
_LARGE_OF_MANY = 0.2  # with three outcomes or more, sums have no regular steps
MOST_LARGE = int(1 / _LARGE**2)  # their squares sum to the variance, so there are not more
_PER_DEVIATION = 32  # points of the grid; a bound is at most 1/32 of a standard deviation too far
_POINTS = 1024  # so the grid ends at +-16 standard deviations
_ROOTS = np.exp(2j * np.pi * np.arange(_POINTS) / _POINTS)
_FREQUENCIES = np.arange(_POINTS // 2 + 1)
_MOST_EXACT = 10_000  # rows of a kind, or with a label; with more, the normal rest is as good
_MOST_SUMS = 4096  # as many are enumerated, which is exact
_MOST_KINDS = 400
_MOST_DRAWN = 600  # kinds of rows times rows, which takes 15 ms
_NONE = np.empty(0, np.int64)
_MOST_WHOLE = 1.2
# Of 50 rows of a normal distribution, 7 hold half of the variance, and of more rows, more.
_MANY_ROWS, _FEW_ROWS = 50, 3
_EMPTY = 1e-9  # a point with less has no sums but for rounding


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
        cls, counts: NDArray[np.int64], values: _Floats, shares: _Floats, rest: float
    ) -> ChanceSum:
        """Return the sum of independent terms and of a normal rest.

        Args:
            counts: (kinds,) how many terms are of each kind.
            values: (kinds, outcomes) the values that a term can have; their mean is zero.
            shares: (outcomes,) the probabilities of these values.
            rest: The variance of the rest.
        """
        deviation = math.sqrt(float(counts @ (values**2 @ shares)) + rest)
        if not len(counts) or not deviation:
            return cls(deviation)
        terms = float(counts.sum())
        sums = np.prod(counts + 1.0) if len(shares) == 2 else len(shares) ** min(terms, 99.0)
        if sums <= _MOST_SUMS and rest <= 1e-9 * deviation**2:
            return cls(deviation, *_enumerated(counts, values, shares, deviation))
        return cls(deviation, *_on_grid(counts, values, shares, rest, deviation))

    def scaled(self, factor: float) -> ChanceSum:
        """Return the distribution of the sum times a factor above 0."""
        return ChanceSum(self.deviation * factor, self.points * factor, self.probabilities)

    def negative(self) -> ChanceSum:
        """Return the distribution of minus the sum."""
        return ChanceSum(self.deviation, -self.points[::-1], self.probabilities[::-1])

    def critical(self, confidence: float) -> float:
        """Return the least sum that chance reaches with a probability of about 1 - confidence.

        Where sums are far apart, it lies between those above it and below it. A sum that chance
        reaches exactly counts half (the mid-p of Lancaster 1961), because a test that counts it
        whole finds less than it promises to; but the whole probability is never above
        1.2 * (1 - confidence).
        """
        if not len(self.points):
            return _NORMAL.inv_cdf(confidence) * self.deviation
        possible = self.probabilities > _EMPTY
        points, probabilities = self.points[possible], self.probabilities[possible]
        at_least = np.cumsum(probabilities[::-1])[::-1]
        level = 1 - confidence
        passes = (at_least - probabilities / 2 <= level) & (at_least <= _MOST_WHOLE * level)
        rare = int(np.argmax(np.append(passes, True)))
        if rare == 0:
            return float(points[0])
        last = float(points[rare - 1])
        if rare == len(points):
            return last + self.deviation / _PER_DEVIATION + 1e-9 * abs(last)
        return (last + float(points[rare])) / 2

    def tail(self, value: float) -> float:
        """Return the probability of a sum of at least this value."""
        if not self.deviation:
            return float(value <= 0)
        if not len(self.points):
            return math.erfc(value / self.deviation / math.sqrt(2)) / 2
        near = self.deviation / _PER_DEVIATION / 2
        return min(1.0, max(0.0, float(self.probabilities[self.points >= value - near].sum())))


def _enumerated(
    counts: NDArray[np.int64], values: _Floats, shares: _Floats, deviation: float
) -> tuple[_Floats, _Floats]:
    """Return all sums of a few terms, ascending, and their probabilities."""
    points, probabilities = np.zeros(1), np.ones(1)
    for count, outcomes in zip(counts.tolist(), values, strict=True):
        for _ in range(count):
            points = np.add.outer(points, outcomes).ravel()
            probabilities = np.multiply.outer(probabilities, shares).ravel()
            # Equal terms have equal sums, so that count terms have count + 1 of them.
            order = np.argsort(points, kind="stable")
            points, probabilities = points[order], probabilities[order]
            starts = np.flatnonzero(np.diff(points, prepend=-np.inf) > 1e-9 * deviation)
            points, probabilities = points[starts], np.add.reduceat(probabilities, starts)
    return points, probabilities


def _on_grid(
    counts: NDArray[np.int64], values: _Floats, shares: _Floats, rest: float, deviation: float
) -> tuple[_Floats, _Floats]:
    """Return the sums on a grid and their probabilities, by the transform of the terms."""
    grid = _Grid.of(counts, values, shares, deviation)
    transform = np.ones(len(_FREQUENCIES), np.complex128)
    if len(shares) == 2:
        turns = _ROOTS[grid.kinds[:, None, :] * _FREQUENCIES[:, None] % _POINTS] @ shares
        transform *= np.prod(turns ** grid.numbers[:, None], axis=0)
    else:
        for kind, number in zip(grid.kinds, grid.numbers.tolist(), strict=True):
            # Most labels have the same value: those that are neither true nor predicted.
            levels, at = np.unique(kind, return_inverse=True)
            turns = _ROOTS[np.outer(_FREQUENCIES, levels) % _POINTS] @ np.bincount(at, shares)
            transform *= turns**number
    return grid.sums(transform, rest)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Terms as multiples of a step.

    The grid begins where every term has its lowest value, so that this sum is exact, and the sums
    of many equal terms are where they belong.

    Attributes:
        step: The distance of two points.
        kinds: (kinds, outcomes) how many steps a term is above its lowest value.
        numbers: (kinds,) how many terms are of each kind.
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
        """Return the grid of some terms; the arguments are those of `ChanceSum.of_terms`."""
        rises = values - values.min(axis=1)[:, None]
        # Most of the variance is on the grid, if it comes from equal terms.
        largest = float(rises[np.argmax(counts * (values**2 @ shares))].max())
        step = largest / max(round(largest / (deviation / _PER_DEVIATION)), 1)
        steps = np.clip(np.rint(rises / step), 0, _POINTS // 2 - 1).astype(np.int64)
        kinds, where = np.unique(steps, axis=0, return_inverse=True)
        numbers = np.asarray(np.bincount(where.ravel(), counts, len(kinds)), np.float64)
        mean, exact = float(numbers @ (kinds @ shares)), float(counts @ (rises @ shares))
        return cls(step, kinds, numbers, mean, exact)

    def sums(self, transform: NDArray[np.complex128], rest: float) -> tuple[_Floats, _Floats]:
        """Return the sums, less their mean, and their probabilities.

        Args:
            transform: (frequencies,) the transform of their distribution.
            rest: The variance of a normal rest.
        """
        angles = 2 * np.pi * _FREQUENCIES / _POINTS
        transform = transform * np.exp(-0.5 * rest / self.step**2 * angles**2)
        # The grid is a circle: its points are those around the mean.
        places = np.arange(_POINTS) + round(self.mean) - _POINTS // 2
        probabilities = np.fft.irfft(transform.conj(), _POINTS)[places % _POINTS]
        # Rounding to the grid changes the mean.
        points = places * (self.exact / self.mean) - self.exact
        return np.asarray(points, np.float64), np.maximum(probabilities, 0.0).astype(np.float64)


def _hypergeometric(step: float, rows: int, of_label: int, of_kind: int) -> ChanceSum:
    """Return `step` times the number of rows of a kind with a label, less its mean.

    Args:
        step: A factor.
        rows: The number of rows.
        of_label: How many of them have the label.
        of_kind: How many of them are of the kind.
    """
    low, high = max(0, of_label + of_kind - rows), min(of_label, of_kind)
    counts = np.arange(low, high + 1.0)
    below = counts[1:]
    odds = np.log(of_label - below + 1) + np.log(of_kind - below + 1)
    odds -= np.log(below) + np.log(rows - of_label - of_kind + below)
    logs = np.concatenate([[0.0], np.cumsum(odds)])
    probabilities = np.exp(logs - logs.max())
    probabilities /= probabilities.sum()
    points = (counts - of_label * of_kind / rows) * step
    if step < 0:
        points, probabilities = points[::-1], probabilities[::-1]
    return ChanceSum(math.sqrt(float(points**2 @ probabilities)), points, probabilities)


def blend(reach: float, critical: float, gain: float) -> float:
    """Return how far a bound is from a gain above 0.

    Far from 0, it is `reach`, which comes from the standard error. The bound is above 0 only if
    chance alone does not explain the gain, which means `critical < gain`. In between, the variance
    changes with the square of the distance.

    Args:
        reach: A quantile times the standard error.
        critical: What chance alone may show.
        gain: How far the value is from that of a model without a gain.
    """
    most = max(reach, critical)
    left = gain**2 + reach**2 - critical**2
    if gain <= 0 or critical <= 0 or left <= 0:
        return most
    return min(reach * gain / math.sqrt(left), most)


@dataclass(frozen=True, eq=False)
class Swaps:
    """The gain between two models if chance decides which of them predicted what in each row.

    Attributes:
        chance: Its distribution.
        gains: The sum of the terms of rows that gain.
        losses: That of the others, above 0.
        decisive: How many rows hold half of the variance, if they are very few of many; else 0.
    """

    chance: ChanceSum
    gains: float
    losses: float
    decisive: int = 0

    @classmethod
    def of(cls, terms: Iterator[_Floats]) -> Swaps:
        """Sum up the terms.

        Args:
            terms: (rows,) by chunk, how much of the gain is due to each row.
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
        rest = max(variance - float(large @ large), 0.0)
        rest = rest if rest > 1e-9 * variance else 0.0
        counts = np.ones(len(large), np.int64)
        chance = ChanceSum.of_terms(
            counts, np.stack([large, -large], axis=1), np.full(2, 0.5), rest
        )
        reached = np.cumsum(large[::-1] ** 2) > variance / 2
        decisive = int(np.argmax(reached)) + 1 if reached.any() else MOST_LARGE
        few = differing >= _MANY_ROWS and decisive <= _FEW_ROWS
        return cls(chance, math.fsum(gains), math.fsum(losses), decisive if few else 0)

    def scaled(self, factor: float) -> Swaps:
        """Return the same for terms times a factor above 0."""
        gains, losses = self.gains * factor, self.losses * factor
        return Swaps(self.chance.scaled(factor), gains, losses, self.decisive)


@dataclass(frozen=True, eq=False)
class LabelTerms:
    """How a metric of given predictions depends on the label of each row.

    Attributes:
        shares: (labels,) the share of the weight of the rows with each label.
        spreads: (labels,) the same of the squared weights, where the mean weight is 1; equal to
            `shares` where all rows count the same.
        blocks: Yields how many rows are of each kind, (kinds,), and what a row of a kind adds to
            the metric for each label that it may have, (kinds, labels).
        expected: The mean of the metric over all shuffles; NaN where the terms tell it.
        more: Variance that the terms do not hold.
    """

    shares: _Floats
    spreads: _Floats
    blocks: Callable[[], Iterator[tuple[NDArray[np.int64], _Floats]]]
    expected: float = math.nan
    more: float = 0.0

    @cached_property
    def mean(self) -> float:
        """The sum of all terms, as chance has it on average."""
        parts = (counts @ (values @ self.shares) for counts, values in self.blocks())
        return math.fsum(float(part) for part in parts)

    def shuffled(self) -> ChanceSum:
        """Return the distribution of the metric, less its mean, if the labels are shuffled."""
        if (exact := self._of_two_kinds()) is not None:
            return exact
        rows, totals = 0, np.zeros(len(self.shares))
        for counts, values in self.blocks():
            rows += int(counts.sum())
            totals += counts @ values
        # A shuffle keeps the number of each label, so what all rows share has no effect.
        common = totals / rows
        common -= common @ self.shares

        def centered() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
            for counts, values in self.blocks():
                yield counts, values - (values @ self.shares)[:, None] - common

        parts = [(counts @ values**2) for counts, values in centered()]
        squares = np.sum(parts, axis=0)  # (labels,)
        plain, spread = float(squares @ self.shares), float(squares @ self.spreads)
        # As in a sample without replacement. Weights make the terms vary more.
        variance = spread * rows / max(rows - 1, 1)
        if not plain or not variance:
            return ChanceSum(math.sqrt(self.more))
        scale = math.sqrt(variance / plain)
        deviation = math.sqrt(variance + self.more)
        least = (_LARGE if len(totals) == 2 else _LARGE_OF_MANY) * deviation / scale
        if self._counts_labels:
            of_label = round(float(self.shares[1]) * rows)
            if drawn := _drawn(_large_terms(centered(), least), rows, of_label, variance):
                return drawn
        counts, values = _large_kinds(centered(), len(totals), least, scale, deviation)
        rest = max(variance - float(counts @ (values**2 @ self.shares)), 0.0) + self.more
        rest = rest if rest > 1e-9 * deviation**2 else 0.0
        return ChanceSum.of_terms(counts, values, self.shares, rest)

    @property
    def _counts_labels(self) -> bool:
        """Whether it only matters how many rows of each kind have the second of two labels."""
        equal = np.abs(self.shares - self.spreads).max() < 1e-9
        return bool(len(self.shares) == 2 and not self.more and equal)

    def _of_two_kinds(self) -> ChanceSum | None:
        """Return the exact distribution for two labels and two kinds of rows; None for others."""
        if not self._counts_labels:
            return None
        first, *others = list(islice(self.blocks(), 2))
        counts, values = first
        if others or len(counts) != 2 or not counts.all():
            return None
        rows = int(counts.sum())
        of_label = round(float(self.shares[1]) * rows)
        if min(of_label, rows - of_label, *counts) > _MOST_EXACT:
            return None
        rise = values[:, 1] - values[:, 0]
        return _hypergeometric(float(rise[1] - rise[0]), rows, of_label, int(counts[1]))


def _drawn(
    terms: Iterator[tuple[NDArray[np.int64], _Floats]], rows: int, of_label: int, variance: float
) -> ChanceSum | None:
    """Return the distribution for two labels if all rows but those of a few kinds are about equal.

    So it is where most rows have the same score. Only the others decide, and how many of them have
    a label is not independent of each other: the labels are drawn without replacement. So this is
    the product of independent terms, corrected by how often as many of these rows have the label.

    Args:
        terms: Counts and values of the rows that are not small; the mean of all rows is zero.
        rows: The number of all rows.
        of_label: How many of all rows have the second label.
        variance: The variance of the sum over all rows.

    Returns:
        None if other rows decide, too, or if it would take long.
    """
    blocks, chosen = [], 0
    for block in terms:
        blocks.append(block)
        chosen += int(block[0].sum())
        if chosen > MOST_LARGE:
            return None
    share, others = of_label / rows, rows - chosen
    if not chosen or not others or not 0 < share < 1:
        return None
    counts = np.concatenate([block[0] for block in blocks])
    rises = np.concatenate([block[1][:, 1] - block[1][:, 0] for block in blocks])
    # What all rows share has no effect, so the others count nothing but for their differences.
    middle = -float(counts @ rises) / others
    of_a_square = share * (1 - share) * rows / (rows - 1)
    squares = variance / of_a_square - float(counts @ rises**2) - others * middle**2
    rest = max(of_a_square * squares, 0.0)
    rest = rest if rest > 1e-9 * variance else 0.0
    deviation, shares = math.sqrt(variance), np.array([1 - share, share])
    values = np.stack([np.zeros(len(rises)), rises - middle], axis=1)
    grid = _Grid.of(counts, values, shares, deviation)
    if len(grid.kinds) * (chosen + 1) > _MOST_DRAWN:
        return None
    labeled = np.arange(max(0, of_label - others), min(of_label, chosen) + 1)
    # How much more often `number` of these rows have the label than if labels were independent.
    odds = [
        _log_choose(others, of_label - number)
        - _log_choose(rows, of_label)
        - number * math.log(share)
        - (chosen - number) * math.log1p(-share)
        for number in labeled.tolist()
    ]
    # The coefficient of the power j of `unit` is the part in which j rows have the label.
    unit = np.exp(2j * np.pi * np.arange(chosen + 1) / (chosen + 1))
    turns = shares * _ROOTS[grid.kinds[:, None, :] * _FREQUENCIES[:, None] % _POINTS]
    factors = turns[:, :, :1] + turns[:, :, 1:] * unit
    product = np.prod(factors ** grid.numbers[:, None, None], axis=0)
    parts = np.fft.fft(product, axis=1)[:, labeled] / (chosen + 1)
    return ChanceSum(deviation, *grid.sums(parts @ np.exp(odds), rest))


def _log_choose(of: int, number: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(number + 1) - math.lgamma(of - number + 1)


def _large_terms(
    blocks: Iterator[tuple[NDArray[np.int64], _Floats]], least: float
) -> Iterator[tuple[NDArray[np.int64], _Floats]]:
    """Yield the counts and values of the terms that may be above `least`."""
    for counts, values in blocks:
        large = np.abs(values).max(axis=1, initial=0) > least
        if large.any():
            yield counts[large], values[large]


def _large_kinds(
    blocks: Iterator[tuple[NDArray[np.int64], _Floats]],
    labels: int,
    least: float,
    scale: float,
    deviation: float,
) -> tuple[NDArray[np.int64], _Floats]:
    """Return the terms that are not small, with those that are about equal as one kind.

    Args:
        blocks: Counts and values by chunk.
        labels: The number of labels.
        least: What values are small.
        scale: A factor of all values that are returned.
        deviation: The standard deviation of the sum.
    """
    step = deviation / _PER_DEVIATION
    kinds: dict[tuple[int, ...], tuple[int, _Floats]] = {}
    for counts, values in _large_terms(blocks, least):
        values = values * scale
        steps = np.rint(values / step).astype(np.int64)
        each, where = np.unique(steps, axis=0, return_inverse=True)
        where = where.ravel()
        number = np.bincount(where, counts, len(each)).astype(np.int64)
        sums = np.stack([np.bincount(where, counts * column, len(each)) for column in values.T], 1)
        for kind, count, total in zip(each.tolist(), number.tolist(), sums, strict=True):
            before = kinds.get(tuple(kind), (0, 0.0))
            kinds[tuple(kind)] = before[0] + count, before[1] + total
    if not kinds:
        return _NONE, np.empty((0, labels))
    counts = np.array([count for count, _ in kinds.values()], np.int64)
    values = np.stack([total / count for count, total in kinds.values()])
    if len(counts) > _MOST_KINDS:  # of many labels: the rest of them is about normal
        chosen = np.argsort(-counts * (values**2).max(axis=1), kind="stable")[:_MOST_KINDS]
        counts, values = counts[chosen], values[chosen]
    return counts, values
