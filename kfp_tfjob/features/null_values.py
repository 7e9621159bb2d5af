"""Recognizes the numbers among the strings that mean a missing value, for training and requests.

`data_options.null_values` lists strings. A number among them, such as -999, means a missing value
in every spelling, because pandas writes it as -999.0 if other values are missing, and SQL as
-999.00. With two rules, a server would take a value for a number that was missing in training.
Called by prepare_data's readers, and by the server's `request_columns.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from .cells import matches
from .types.number import is_number, parse_all

_PADDED = "^[+-]?0[0-9]"  # 000 may be a code that is not 0


def null_numbers(null_values: Iterable[str]) -> np.ndarray:
    """Return the numbers among the strings as float64 of shape [numbers]."""
    return np.array([float(value) for value in null_values if is_number(value)])


def are_null_numbers(texts: pa.Array, numbers: np.ndarray) -> np.ndarray:
    """Return bool of shape [texts]: the strings that spell one of the numbers.

    Args:
        texts: Strings without blanks around them, and without null.
        numbers: The result of `null_numbers`.
    """
    values, are_numbers = parse_all(texts)
    return are_numbers & np.isin(values, numbers) & ~matches(texts, _PADDED)


def rounded_nulls(numbers: np.ndarray, float_type: type[np.floating]) -> np.ndarray:
    """Return the numbers as float64, rounded as values of a type with fewer digits are.

    Args:
        numbers: The result of `null_numbers`.
        float_type: The values' type; float64 for whole numbers.
    """
    with np.errstate(over="ignore"):
        rounded = numbers.astype(float_type).astype(np.float64)
    # As float32, 1e39 would stand for every infinity, and 1e-50 for every 0.
    return rounded[np.isclose(rounded, numbers, rtol=1e-3, atol=0)]
