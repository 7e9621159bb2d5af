"""One check of the gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check that the verdict is based on.

    Attributes:
        name: What is checked: `threshold`, `slices`, `champion`, `same_model`, `taken_back`, ...
        metric: The metric that is checked; empty if none.
        value: The value that is checked; for a comparison, the gain (above 0 is better).
        interval: Its confidence interval; for a comparison, the two one-sided bounds.
        threshold: The limit for the value.
        passed: Whether it passes.
        explanation: The result as a clause for people.
    """

    name: str
    passed: bool
    explanation: str
    metric: str = ""
    value: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    threshold: Any = None
