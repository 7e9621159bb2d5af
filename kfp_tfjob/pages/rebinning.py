"""Moves counts from one set of bins to the bars of a histogram, so that one plot can show both.

A histogram has bars of equal width, because a reader wants the shape of the values. Distributions
are counted in bins of equally many rows, because drift is measured in them. If rows were spread
evenly within their bins, a line for the same rows would not lie on the bars, most of all where a
column has few distinct values. So a bin's rows are spread over the bars as the training
rows are, whose counts are known in both. Called by prepare_data's report.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 40  # of proportional fitting; a plot of 36 pixels shows no later change
_Floats = NDArray[np.float64]


class Rebinning:
    """The share of each bin's rows in each bar.

    Args:
        edges: The upper ends of all bins except the last one, which is unbounded.
        train: The training rows by bin, one more than there are edges.
        bars: The training rows by bar, or a sample of them.
        ends: The first bar's lower end and the last bar's upper end.
    """

    def __init__(
        self,
        edges: Sequence[float],
        train: Sequence[int],
        bars: Sequence[int],
        ends: tuple[float, float],
    ) -> None:
        even = _overlaps(np.asarray(edges, np.float64), len(bars), ends)
        fitted = even.copy()
        rows, columns = _shares(train), _shares(bars)
        for _ in range(_ROUNDS):  # iterative proportional fitting of both totals
            fitted *= _ratio(rows, fitted.sum(axis=1))[:, None]
            fitted *= _ratio(columns, fitted.sum(axis=0))
        sums = fitted.sum(axis=1, keepdims=True)
        # A bin without training rows shows its rows where its values lie.
        self._by_bin = np.where(sums > 0, fitted / np.where(sums > 0, sums, 1.0), even)

    def by_bar(self, rows: Sequence[int]) -> list[float]:
        """Return other rows by bar, from these rows by bin."""
        return (np.asarray(rows, np.float64) @ self._by_bin).tolist()


def _overlaps(edges: _Floats, bars: int, ends: tuple[float, float]) -> _Floats:
    """Return (bins, bars) shares if half of a bin's rows are at its upper end, and half spread."""
    low, high = ends
    starts = np.linspace(low, high, bars + 1)
    lower = np.clip(np.concatenate([[low], edges]), low, high)[:, None]
    upper = np.clip(np.concatenate([edges, [high]]), low, high)[:, None]
    lengths = np.minimum(upper, starts[1:]) - np.maximum(lower, starts[:-1])
    lengths = np.maximum(lengths, 0.0)
    width = (high - low) or 1.0
    last = np.clip(((upper[:, 0] - low) / width * bars).astype(np.int64), 0, bars - 1)
    at_end = np.zeros_like(lengths)
    at_end[np.arange(len(last)), last] = 1.0
    sums = lengths.sum(axis=1, keepdims=True)
    spread = np.where(sums > 0, lengths / np.where(sums > 0, sums, 1.0), at_end)
    return (spread + at_end) / 2


def _shares(counts: Sequence[int]) -> _Floats:
    numbers = np.asarray(counts, np.float64)
    return numbers / (numbers.sum() or 1.0)


def _ratio(target: _Floats, current: _Floats) -> _Floats:
    return np.divide(target, current, out=np.zeros_like(target), where=current > 0)
