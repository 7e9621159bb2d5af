"""Adds up the mean, the deviation and the range of columns, part by part.

Called by prepare_data's statistics and by the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .types.base import ColumnMoments

NO_MOMENTS = ColumnMoments(mean=0.0, std=0.0)
_CHUNK_VALUES = 1 << 20  # another number would round the sums differently


@dataclass
class Moments:
    """Mean, deviation and range of columns, in float64, merged as in Chan et al. (1979).

    Attributes:
        count: The values of each column that are not missing.
        squares: The sum of the squares of their deviations from the mean.
    """

    count: np.ndarray
    zeros: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    @classmethod
    def empty(cls, columns: int) -> Moments:
        """Return the moments of no values."""
        counts, zeros = np.zeros((2, columns), np.int64)
        mean, squares = np.zeros((2, columns))
        ends = np.full(columns, np.inf), np.full(columns, -np.inf)
        return cls(counts, zeros, mean, squares, *ends)

    def add(self, values: np.ndarray, width: int = 0) -> None:
        """Add floats of shape [rows, columns], NaN if missing; a whole row has `width`."""
        if not values.shape[1]:
            return
        step = max(1, _CHUNK_VALUES // (width or values.shape[1]))
        for start in range(0, len(values), step):
            self._add(values[start : start + step])

    def _add(self, values: np.ndarray) -> None:
        gaps = np.isnan(values)
        part = values.astype(np.float64)
        count = np.full(values.shape[1], len(values))
        low = high = values
        zeros = part == 0
        zeros = zeros.sum(0) if zeros.any() else np.zeros_like(count)
        some = gaps.any()
        if some:
            count -= gaps.sum(0)
            part[gaps] = 0
            low, high = np.where(gaps, np.inf, values), np.where(gaps, -np.inf, values)
        mean = part.sum(0) / np.maximum(count, 1)
        part -= mean
        part *= part
        if some:
            part[gaps] = 0
        self.merge(Moments(count, zeros, mean, part.sum(0), low.min(0), high.max(0)))

    def merge(self, moments: Moments) -> None:
        """Add the moments of later rows."""
        total = np.maximum(self.count + moments.count, 1)
        delta = np.where(moments.count > 0, moments.mean - self.mean, 0)
        self.squares += moments.squares
        self.squares += delta**2 * (self.count * moments.count / total)
        self.mean = self.mean + delta * (moments.count / total)
        self.zeros += moments.zeros
        self.count = self.count + moments.count
        self.minimum = np.minimum(self.minimum, moments.minimum)
        self.maximum = np.maximum(self.maximum, moments.maximum)

    def column(self, i: int) -> ColumnMoments:
        """Return the moments of one column; zeros if it is without values."""
        count = int(self.count[i])
        if not count:
            return NO_MOMENTS
        return ColumnMoments(
            count=count,
            mean=float(self.mean[i]),
            std=float(np.sqrt(self.squares[i] / count)),
            min=float(self.minimum[i]),
            max=float(self.maximum[i]),
            zeros=int(self.zeros[i]),
        )
