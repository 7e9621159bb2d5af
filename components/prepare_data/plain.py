"""Writes arrays as plain values, as JSON has them, without a loss."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def plain_of(array: np.ndarray) -> dict[str, Any]:
    """Return an array of numbers as plain values."""
    return {
        "type": array.dtype.str,
        "shape": list(array.shape),
        "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
    }


def array_of(plain: dict[str, Any]) -> np.ndarray:
    """Return the array of `plain_of`; it may be changed."""
    data = np.frombuffer(base64.b64decode(plain["data"]), plain["type"])
    return data.reshape(plain["shape"]).copy()
