"""Formats metrics, differences and p-values for the log, the verdict and the report.

One place decides the digits, so a number looks the same wherever it appears, and a bound is never
rounded to the better side. Called by `gate.py`, `report.py` and `summary.py`, among others.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def number(value: float | None) -> str:
    """Return a metric with its significant digits, `0.9730` or `1,411`; a dash if it is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e9 or 0 < size < 0.01:
        return f"{value:.4g}"
    if size < 100:
        return f"{value:,.4f}"
    return f"{value:,.0f}" if size >= 10_000 or value == round(value) else f"{value:,.1f}"


def checked_number(value: float | None, passes: Callable[[float], bool]) -> str:
    """Return a metric as `number` does, with nine digits if rounding it would change a check.

    Args:
        value: The metric.
        passes: Whether a value passes the check.
    """
    formatted = number(value)
    if value is None or not math.isfinite(value):
        return formatted
    rounded = float(formatted.replace(",", ""))
    return formatted if passes(rounded) == passes(value) else f"{value:.9g}"


def difference(value: float | None, of: float | None) -> str:
    """Return a difference with its sign, and with the decimals that `number` gives the metric.

    Args:
        value: The difference; a dash if it is unknown.
        of: One of both values.
    """
    if value is None or not math.isfinite(value):
        return "–"
    formatted = number(value)
    if of is not None and 0.01 <= abs(of) < 100 and abs(value) < 100:
        formatted = f"{value:z.4f}"  # z: -0.00001 is shown as 0.0000
    return f"+{formatted}" if value > 0 and formatted.strip("0.") else formatted


def rough(value: float) -> str:
    """Return a number with two digits."""
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.2g}"


def lower(value: float) -> str:
    """Return a lower bound with its sign and three digits, never rounded up."""
    if not math.isfinite(value) or value == 0:
        return f"{value:+g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    if not 1e-6 <= abs(value) < 1e9:
        return f"{math.floor(value / step) * step:+.3g}"
    return f"{math.floor(value / step) * step:+,.{max(0, -math.floor(math.log10(step)))}f}"


def chance(value: float | None) -> str:
    """Return a p-value with two digits; a dash if it is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def leaked_rows_note(leaked: int | None, rows: int) -> str:
    """Return a note on test rows that are also in train; empty without such rows.

    Args:
        leaked: A verdict's `also_in_train`. It is None in older verdicts, and where the data is
            split by its rows' hashes, which keep equal rows in one split.
        rows: The number of test rows.
    """
    if not leaked:
        return ""
    scope = "" if leaked > rows / 2 else "for these, "
    return (
        f"{leaked:,} of {rows:,} test rows are also in train, so {scope}the metrics say nothing"
        " about new data"
    )
