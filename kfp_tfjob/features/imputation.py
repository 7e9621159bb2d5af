"""Learns what stands for a column's missing values, by the rule of `missing` in data_options.

The fill value comes from train alone, so that validation and test say nothing to the model. It is
stored in schema.json and applied in the model's graph, so training and serving fill in the same.
Called by the column types when they learn their encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .types.base import ColumnType, TrainValues


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


def learn_missing(column_type: type[ColumnType], values: TrainValues) -> Missing | None:
    """Return the rule for missing values and what stands for one; 0 if train has only those.

    Args:
        column_type: The type of the column, which reads the constant and knows its median.
        values: The column's values in train.
    """
    gaps, sample = values.gaps, values.sample
    if gaps is None:
        return None
    if gaps.rule in ("fail", "drop"):
        return Missing(gaps.rule, None, False)
    value: Any = 0
    if gaps.rule == "constant":
        value = column_type.constant(gaps.value or "")
    elif len(sample) and gaps.rule == "mean":
        numbers = sample.tolist()  # the sum of many dates does not fit into 64 bits
        is_whole = column_type.field.type is np.int64
        value = sum(numbers) // len(numbers) if is_whole else fsum(numbers) / len(numbers)
    elif len(sample) and gaps.rule == "most_frequent":
        distinct, counts = np.unique(sample, return_counts=True)
        value = distinct[counts.argmax()]  # the smallest of several
    elif len(sample):
        value = column_type.median(sample)
    return Missing(gaps.rule, column_type.value_type(value), gaps.indicator)
