"""The plots that show a verdict: the compared values, the gain of every metric, and the slices.

The gate decides by the bounds of the gain and not by two intervals that overlap, so both are drawn.
Metrics with different units cannot share an axis, so each unit has its own panel. Called by
report.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kfp_tfjob.judging.formatting import number
from kfp_tfjob.judging.metric_uncertainty import Measured
from kfp_tfjob.options.metric_names import unit_of
from kfp_tfjob.pages.intervals import IntervalRow, Panel, interval_cell, intervals
from kfp_tfjob.registry.verdict_record import ModelVerdict, VerdictSlice

from .plots import Plot

_UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class MetricRow:
    """A metric of the model, next to the reference: the champion or the baseline.

    Attributes:
        name: Its name.
        label: Its name for people.
        meaning: What it measures; empty for a user's own metric.
        model: The model's value.
        reference: The champion's or the baseline's value.
        gain: How much better the model is, as text.
        bounds: The gain, and its lower and upper bound; NaN if unknown.
    """

    name: str
    label: str
    meaning: str
    model: Measured
    reference: Measured
    gain: str
    bounds: tuple[float, float, float]


def value_plot(verdict: ModelVerdict, metric: MetricRow, against: str, bound: str) -> Plot | None:
    """Draw the primary metric of the model and of what it is compared with on one axis.

    Args:
        verdict: The verdict, whose thresholds of the metric are drawn as lines.
        metric: The primary metric.
        against: The name of the champion, or `baseline`.
        bound: The confidence of an interval's end, for example `95%`.

    Returns:
        The plot; None if the model's value is not a number.
    """
    if not math.isfinite(metric.model.value):
        return None
    rows = [_value_row("model", metric.model, "a"), _value_row(against, metric.reference, "b")]
    lines = {}
    for check in verdict.checks:
        if check.name == "threshold" and check.metric == metric.name:
            limits = check.threshold or {}
            lines |= {f"{name} {limit:.12g}": float(limit) for name, limit in limits.items()}
    title = f"{metric.label} of the model and of {_article(against)}"
    note = f"Each end of an interval is a {bound} bound."
    return Plot(title, intervals(title, [Panel(metric.label, rows, lines)]), note)


def gain_plot(verdict: ModelVerdict, metrics: Sequence[MetricRow], against: str) -> Plot | None:
    """Draw the gain of every metric with its bounds; a gain above 0 is better.

    Args:
        verdict: The verdict, whose threshold for the gain is drawn as a line.
        metrics: The metrics, the primary one first.
        against: The name of the champion, or `baseline`.

    Returns:
        The plot; None if no gain is known.
    """
    panels: dict[str, list[MetricRow]] = {}
    for metric in metrics:
        if math.isfinite(metric.bounds[0]):
            panels.setdefault(unit_of(metric.name), []).append(metric)
    if not panels:
        return None
    drawn = []
    for unit, rows in panels.items():
        lines = {"no gain": 0.0}
        for check in verdict.checks:
            limit = check.threshold
            if check.name == "champion" and check.metric == rows[0].name and limit:
                lines["required"] = float(limit)
        suffix = f" in {unit}" if unit else ""
        drawn.append(Panel(f"gain{suffix}", [_gain_row(row) for row in rows], lines))
    title = f"Gain over {_article(against)}"
    note = (
        "The ends of a line are the bounds of the gain. A line to the right of 0 is a gain beyond"
        " chance. Both predict the same rows, so these bounds are more precise than two intervals."
    )
    return Plot(title, intervals(title, drawn), note)


def slice_bars(slices: Sequence[VerdictSlice]) -> list[Markup]:
    """Draw each slice's metric as a bar with its interval, all on one axis that includes 0."""
    values = [
        point
        for part in slices
        for point in (part.value, part.champion, *part.interval)
        if point is not None and math.isfinite(point)
    ]
    ends = min([0.0, *values]), max([0.0, *values])
    return [
        interval_cell(
            _or_nan(part.value),
            (_or_nan(part.interval[0]), _or_nan(part.interval[1])),
            _or_nan(part.champion),
            ends,
        )
        for part in slices
    ]


def gain_style(bounds: tuple[float, float, float]) -> str:
    """Return the color of a gain: good or bad beyond chance, otherwise neutral."""
    _, low, high = bounds
    return "good" if low > 0 else "bad" if high < 0 else "c"


def _value_row(name: str, value: Measured, style: str) -> IntervalRow:
    numbers = number(value.value)
    low, high = _interval_or_unknown(value.low, value.high)
    if math.isfinite(low):
        numbers += f" ({number(low)} to {number(high)})"
    return IntervalRow(name, numbers, value.value, low, high, style)


def _gain_row(metric: MetricRow) -> IntervalRow:
    value, low, high = metric.bounds
    numbers = metric.gain
    low, high = _interval_or_unknown(low, high)
    if math.isfinite(low):
        numbers += f" ({number(low)} to {number(high)})"
    return IntervalRow(metric.label, numbers, value, low, high, gain_style(metric.bounds))


def _interval_or_unknown(low: float, high: float) -> tuple[float, float]:
    return (low, high) if math.isfinite(low) and math.isfinite(high) else _UNKNOWN


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _article(against: str) -> str:
    """Return `champion 3` as it is, and `the baseline`."""
    return against if against.startswith("champion") else f"the {against}"
