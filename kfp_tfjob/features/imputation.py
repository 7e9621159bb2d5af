"""Learns what stands for a column's missing values, by the rule of `missing` in data_options.

The fill value comes from train alone, so that validation and test say nothing to the model. It is
stored in schema.json and applied in the model's graph, so training and serving fill in the same.
Called by types/base.py when a column's encoding is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Missing:
    """The rule for a column's missing values.

    Attributes:
        rule: `median`, `mean`, `most_frequent`, `constant`, `fail` or `drop`.
        value: The fill value, as in a row; None if a missing value is an error.
        indicator: Whether the packed row distinguishes missing values.
    """

    rule: str
    value: float | int | None
    indicator: bool = False


def fill_value(rule: str, sample: np.ndarray, median: Callable[[np.ndarray], Any]) -> Any:
    """Return the value that replaces a missing one; 0 if all values of train are missing.

    Args:
        rule: `median`, `mean` or `most_frequent`.
        sample: (rows,) sorted values of train without missing ones, as in a row; int64 for dates.
        median: Returns the median of such values, by the type of the column.
    """
    if not len(sample):
        return 0
    if rule == "mean":
        numbers = sample.tolist()  # the sum of many dates does not fit into 64 bits
        is_whole = sample.dtype == np.int64
        return sum(numbers) // len(numbers) if is_whole else fsum(numbers) / len(numbers)
    if rule == "most_frequent":
        distinct, counts = np.unique(sample, return_counts=True)
        return distinct[counts.argmax()]  # the smallest of several
    return median(sample)
