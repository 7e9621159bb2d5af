"""Counts, moments and samples of columns of train, merged in the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.features.types.base import NO_DATE

_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20
_CHUNK_VALUES = 1 << 20
_LATEST = 2**63 - 1


class Moments:
    """Mean, deviation and range of columns, in float64, merged as in Chan et al. (1979).

    Whole numbers keep their range exactly.

    Args:
        columns: The number of columns.

    Attributes:
        count: The values of each column that are no gaps.
        zeros: How many of them are 0.
        minimum: The smallest value of each column; None without a row.
        maximum: The largest value.
    """

    def __init__(self, columns: int) -> None:
        self.count = np.zeros(columns, np.int64)
        self.zeros = np.zeros(columns, np.int64)
        self._mean, self._squares = np.zeros(columns), np.zeros(columns)
        self.minimum: Any = None
        self.maximum: Any = None

    def add(self, values: np.ndarray) -> None:
        """Add values of shape [rows, columns]: floats, NaN for a gap, or int64, NO_DATE for one."""
        if not values.shape[1]:
            return
        step = max(1, _CHUNK_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            self._add(values[start : start + step])

    def _add(self, values: np.ndarray) -> None:
        whole = values.dtype.kind == "i"
        gaps = values == NO_DATE if whole else np.isnan(values)
        part = values.astype(np.float64)
        low = high = values
        some = gaps.any()
        count = np.full(values.shape[1], len(values))
        if some:
            count -= gaps.sum(0)
            part[gaps] = 0
            least, most = (NO_DATE, _LATEST) if whole else (-np.inf, np.inf)
            low, high = np.where(gaps, most, values), np.where(gaps, least, values)
        zeros = part == 0
        if zeros.any():
            zeros = (zeros & ~gaps if some else zeros).sum(0)
        else:
            zeros = np.zeros_like(count)
        mean = part.sum(0) / np.maximum(count, 1)
        part -= mean
        part *= part
        if some:
            part[gaps] = 0
        self._join(count, zeros, mean, part.sum(0), low.min(0), high.max(0))

    def merge(self, later: Moments) -> None:
        """Add the moments of later rows."""
        if later.minimum is not None:
            moments = later._mean, later._squares
            self._join(later.count, later.zeros, *moments, later.minimum, later.maximum)

    def _join(
        self,
        count: np.ndarray,
        zeros: np.ndarray,
        mean: np.ndarray,
        squares: np.ndarray,
        minimum: np.ndarray,
        maximum: np.ndarray,
    ) -> None:
        both = np.maximum(self.count + count, 1)
        delta = np.where(count > 0, mean - self._mean, 0)
        self._squares += squares
        self._squares += delta**2 * (self.count * count / both)
        self._mean = self._mean + delta * (count / both)
        self.zeros += zeros
        self.count = self.count + count
        first = self.minimum is None
        self.minimum = minimum if first else np.minimum(self.minimum, minimum)
        self.maximum = maximum if first else np.maximum(self.maximum, maximum)

    def to_plain(self) -> list[Any]:
        """Return them as JSON values."""
        if self.minimum is None:
            return [len(self.count)]
        arrays = (self.count, self.zeros, self._mean, self._squares, self.minimum, self.maximum)
        return [len(self.count), *map(plain_of, arrays)]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Moments:
        """Return what `to_plain` has written."""
        found = cls(plain[0])
        if arrays := [array_of(item) for item in plain[1:]]:
            found.count, found.zeros, found._mean, found._squares = arrays[:4]
            found.minimum, found.maximum = arrays[4:]
        return found

    def column(self, i: int) -> dict[str, float | int]:
        """Return the statistics of one column, zeros if it has no value.

        `std` is the population standard deviation.
        """
        count = int(self.count[i])
        if not count:
            return {"count": 0, "mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0, "zeros": 0}
        return {
            "count": count,
            "mean": float(self._mean[i]),
            "std": float(np.sqrt(self._squares[i] / count)),
            "min": float(self.minimum[i]),
            "max": float(self.maximum[i]),
            "zeros": int(self.zeros[i]),
        }


class Sample:
    """The first rows of train in the order of their hashes: a random but reproducible sample.

    Args:
        kinds: The type and the number of the columns of each array.
        before: Rows of train that come before the first one.
    """

    def __init__(self, kinds: Sequence[tuple[type[np.generic], int]], before: int = 0) -> None:
        size = sum(np.dtype(kind).itemsize * columns for kind, columns in kinds)
        wanted = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // max(size, 1)))
        self._wanted = max(wanted - before, 0)
        self._parts = [[np.empty((0, columns), kind)] for kind, columns in kinds]

    def add(self, *arrays: np.ndarray) -> None:
        """Add rows while they are wanted; the arrays have the shape [rows, columns]."""
        if self._wanted:
            for parts, array in zip(self._parts, arrays, strict=True):
                parts.append(array[: self._wanted].astype(parts[0].dtype))
            self._wanted = max(self._wanted - len(arrays[0]), 0)

    def merge(self, later: Sample) -> None:
        """Add the sample of the rows that follow."""
        for parts, more in zip(self._parts, later._parts, strict=True):
            parts += more

    def to_plain(self) -> list[Any]:
        """Return it as JSON values."""
        return list(map(plain_of, self.arrays()))

    def restore(self, plain: Sequence[Any]) -> None:
        """Become what `to_plain` has written."""
        self._parts = [[array_of(item)] for item in plain]

    def arrays(self) -> list[np.ndarray]:
        """Return the rows of each array."""
        return [np.concatenate(parts) for parts in self._parts]
