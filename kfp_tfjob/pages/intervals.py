"""Draws values with their intervals: below each other on one axis, or one in a table's cell.

A reader compares two intervals only if they share an axis, and an axis is useful only for values of
one unit. So a plot consists of panels, each with its own axis, one unit and as many rows as it has
values. A row's name and numbers are above its line: next to it, long names of metrics and classes
would leave no space for the line on a phone. Called by evaluate's `verdict_plots.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

from kfp_tfjob.common.escaping import short

from .charts import axis_ends, round_ticks, share_of, tick
from .svg import add, drawing, markup

_WIDTH, _EDGE = 420, 14  # pixels; as wide as the other plots
_ROW, _AXIS = 36, 40  # height of a row, and of an axis with its name
_TOP = 16  # above the first row, for the names of the lines
_MOST_NAME, _MOST_NUMBERS = 34, 40  # characters to the left and to the right of a row
_CELL_WIDTH, _CELL_HEIGHT = 120, 16


@dataclass(frozen=True)
class IntervalRow:
    """A value with its interval.

    Attributes:
        name: Its name.
        numbers: The value and its interval as text.
        value: The value; not finite for a row without a line.
        low: The interval's lower end; not finite without an interval.
        high: The interval's upper end.
        style: A color of style.css: `a`, `b`, `c`, `good` or `bad`.
    """

    name: str
    numbers: str
    value: float
    low: float = math.nan
    high: float = math.nan
    style: str = "a"

    @property
    def points(self) -> list[float]:
        """The finite ones of the value and the ends of its interval."""
        return [point for point in (self.value, self.low, self.high) if math.isfinite(point)]


@dataclass(frozen=True)
class Panel:
    """Values of one unit.

    Attributes:
        axis: The name of the axis.
        rows: The values, from top to bottom.
        lines: Values to compare them with, drawn as dashed lines, by name.
    """

    axis: str
    rows: Sequence[IntervalRow]
    lines: Mapping[str, float]


def intervals(title: str, panels: Sequence[Panel]) -> Markup:
    """Draw panels of values with their intervals below each other."""
    heights = [_TOP + _ROW * len(panel.rows) + _AXIS for panel in panels]
    svg = drawing(title, _WIDTH, sum(heights))
    top = 0
    for panel, height in zip(panels, heights, strict=True):
        _draw_panel(svg, panel, top)
        top += height
    return markup(svg)


def interval_cell(
    value: float, interval: tuple[float, float], other: float, ends: tuple[float, float]
) -> Markup:
    """Draw a value as a bar from 0 for a table's cell, with its interval and another value.

    Without a finite number, the drawing is empty.

    Args:
        value: The bar's length; not finite for an empty cell.
        interval: Drawn as a line over the bar; not finite without an interval.
        other: The value to compare it with, drawn as a stroke; not finite without one.
        ends: The ends of the axis, which are the same for all rows and include 0.
    """
    if not math.isfinite(value) and not math.isfinite(other):
        return Markup()
    svg = drawing("value with its interval", _CELL_WIDTH, _CELL_HEIGHT)

    def x_of(number: float) -> float:
        return 1 + (_CELL_WIDTH - 2) * min(max(share_of(number, *ends), 0.0), 1.0)

    middle = _CELL_HEIGHT / 2
    if math.isfinite(value):
        first, last = sorted((x_of(0.0), x_of(value)))
        add(svg, "rect", x=first, y=3, width=last - first, height=_CELL_HEIGHT - 6, class_="soft")
        if all(map(math.isfinite, interval)):
            _whisker(svg, x_of(interval[0]), x_of(interval[1]), middle, "line")
    if math.isfinite(other):
        x = x_of(other)
        add(svg, "line", x1=x, x2=x, y1=0, y2=_CELL_HEIGHT, class_="line b")
    return markup(svg)


def _draw_panel(svg: ElementTree.Element, panel: Panel, top: float) -> None:
    """Draw a panel's grid, reference lines and rows, from the vertical position `top` down."""
    points = [point for row in panel.rows for point in row.points]
    points += [line for line in panel.lines.values() if math.isfinite(line)]
    low, high = axis_ends(points or [0.0], 0.5)
    gap = high / 50 - low / 50
    low, high = low - gap, high + gap

    def x_of(number: float) -> float:
        return _EDGE + share_of(number, low, high) * (_WIDTH - 2 * _EDGE)

    first, bottom = top + _TOP, top + _TOP + _ROW * len(panel.rows)
    for value in round_ticks((low, high)):
        x = x_of(value)
        add(svg, "line", x1=x, x2=x, y1=first, y2=bottom, class_="grid")
        add(svg, "text", tick(value), x=x, y=bottom + 14, class_="mid")
    add(svg, "text", panel.axis, x=_WIDTH / 2, y=bottom + 30, class_="mid")
    for name, value in panel.lines.items():
        if math.isfinite(value):
            x = x_of(value)
            add(svg, "line", x1=x, x2=x, y1=first, y2=bottom, class_="line dashed c")
            anchor = "start" if x < _WIDTH / 3 else "end" if x > 2 * _WIDTH / 3 else "middle"
            add(svg, "text", name, x=x, y=top + 11, text_anchor=anchor)
    for index, row in enumerate(panel.rows):
        text_y, line_y = first + _ROW * index + 14, first + _ROW * index + 25
        add(svg, "text", short(row.name, _MOST_NAME), x=_EDGE, y=text_y, class_="ink halo")
        numbers = short(row.numbers, _MOST_NUMBERS)
        end = {"x": _WIDTH - _EDGE, "y": text_y, "text_anchor": "end"}
        add(svg, "text", numbers, **end, class_="halo")
        if math.isfinite(row.low) and math.isfinite(row.high):
            _whisker(svg, x_of(row.low), x_of(row.high), line_y, f"line {row.style}")
        if math.isfinite(row.value):
            add(svg, "circle", cx=x_of(row.value), cy=line_y, r=4, class_=f"fill {row.style}")


def _whisker(svg: ElementTree.Element, first: float, last: float, y: float, style: str) -> None:
    """Draw a horizontal line with an upright stroke at each end."""
    path = f"M{first:.1f} {y - 4:g}v8m0 -4H{last:.1f}m0 -4v8"
    add(svg, "path", d=path, class_=style)
