"""Quantiles of errors, exact for any number of rows in two passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.estimates import weights_of
from kfp_tfjob.judging.predictions import ValuePredictions

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_HALF = 1 << 16


def quantiles(
    predictions: ValuePredictions,
    shares: Sequence[float] = SHARES,
    values: Callable[[ValuePredictions], NDArray[np.float64]] = lambda chunk: chunk.errors,
) -> list[float]:
    """Return the weighted quantiles of a value of each row, to the precision of a float32.

    A quantile is the mean of the last value with at most, and the first with at least this share of
    the weight up to it: for 0.5 and rows of equal weight, the usual median. The upper 16 bits of
    the values are counted first, and then the lower ones within each upper half that is needed.

    Args:
        predictions: The predictions.
        shares: Between 0 and 1.
        values: From a chunk of the predictions to (rows,) values.
    """
    upper = np.zeros(_HALF)
    for chunk in predictions.chunks():
        upper += np.bincount(_bits(values(chunk)) >> 16, weights_of(chunk), _HALF)
    sums = np.cumsum(upper)
    total = sums[-1]
    # (share, which end) -> the upper half that has it
    wanted = {
        (share, last): _reached(sums, share * total, last) for share in shares for last in (0, 1)
    }
    lower = {half: np.zeros(_HALF) for half in set(wanted.values())}
    for chunk in predictions.chunks():
        bits, weights = _bits(values(chunk)), weights_of(chunk)
        for half, counts in lower.items():
            chosen = bits >> 16 == half
            counts += np.bincount(bits[chosen] & (_HALF - 1), weights[chosen], _HALF)
    ends = {}
    for (share, last), half in wanted.items():
        before = sums[half] - upper[half]
        place = _reached(before + np.cumsum(lower[half]), share * total, last)
        ends[share, last] = _value((half << 16) + place)
    return [(ends[share, 0] + ends[share, 1]) / 2 for share in shares]


def _reached(sums: NDArray[np.float64], weight: float, last: int) -> int:
    """Return the first place whose sum is at least (last: more than) this weight."""
    slack = 1e-9 * sums[-1]  # of sums of weights, not of counts
    at = np.searchsorted(sums, weight + slack if last else weight - slack, "left")
    used = np.flatnonzero(np.diff(sums, prepend=0.0) > 0)
    return int(min(at, used[-1] if len(used) else 0))


def _bits(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bits of each value as a float32, in the order of the values."""
    with np.errstate(over="ignore"):
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.int64)
    return np.where(bits >> 31, 0xFFFFFFFF - bits, bits | 0x80000000)


def _value(bits: int) -> float:
    bits = bits & 0x7FFFFFFF if bits >> 31 else 0xFFFFFFFF - bits
    return float(np.array([bits], np.uint32).view(np.float32)[0])
