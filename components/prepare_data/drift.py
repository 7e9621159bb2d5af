"""Measures how far the values of a column have moved from those of another dataset.

PSI, the population stability index, compares the shares of the rows in the same bins: sum of
(p - q) * ln(p / q). Below 0.1 is usual.

A bin without rows counts as half a row, so no figure is infinite. Few rows differ by chance alone:
among equal distributions, PSI is about chi-squared with one degree of freedom for each bin but one,
times 1/n + 1/m (Yurdakul, "Statistical properties of population stability index", 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_QUANTILE = 3.29  # of the normal distribution, 99.95 %: there may be hundreds of columns


@dataclass(frozen=True)
class Drift:
    """How far two distributions are apart.

    Attributes:
        psi: The population stability index.
        chance: The PSI that rows of one distribution reach by chance, once in 2,000 columns.
    """

    psi: float
    chance: float

    @property
    def is_chance(self) -> bool:
        """Whether so few rows may differ so much by chance."""
        return self.psi <= self.chance


def measure(before: Sequence[float], now: Sequence[float]) -> Drift | None:
    """Return how far the rows in some bins have moved.

    Args:
        before: Rows by bin.
        now: Rows by bin, over the same bins.

    Returns:
        None if one of them has no rows.
    """
    old, new = np.array(before, np.float64), np.array(now, np.float64)
    used = (old + new) > 0
    old, new = old[used], new[used]
    rows = old.sum(), new.sum()
    if not rows[0] or not rows[1]:
        return None
    p, q = _shares(old), _shares(new)
    chance = _chi_squared(len(p) - 1) * (1 / rows[0] + 1 / rows[1])
    return Drift(float(((p - q) * np.log(p / q)).sum()), float(chance))


def _shares(counts: np.ndarray) -> np.ndarray:
    """Return shares without a 0."""
    if not (counts == 0).any():
        return counts / counts.sum()
    filled = np.where(counts == 0, 0.5, counts)
    return filled / filled.sum()


def _chi_squared(freedom: int) -> float:
    """Return what a chi-squared variable exceeds once in 2,000 times (Wilson and Hilferty)."""
    if not freedom:
        return 0.0
    part = 2 / (9 * freedom)
    return freedom * (1 - part + _QUANTILE * math.sqrt(part)) ** 3
