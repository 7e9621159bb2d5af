"""Different values of sorted whole numbers, and which values are among them.

np.unique and np.isin put whole numbers into a hash table, which takes fifty times as long as a pass
over sorted ones.
"""

from __future__ import annotations

import numpy as np


def distinct(ordered: np.ndarray) -> np.ndarray:
    """Return each value of an ascending array once."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return for each value whether it is in an ascending array: bool of the shape of `values`."""
    if not len(ordered):
        return np.zeros(values.shape, bool)
    places = np.searchsorted(ordered, values)
    return ordered[np.minimum(places, len(ordered) - 1)] == values
