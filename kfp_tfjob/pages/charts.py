"""Draws plots as inline SVG in the colors of style.css, so they follow light and dark mode.

They are drawn by hand because no library fits. matplotlib takes more than a second to import and
fixes its colors. pygal 3.1 puts a script and a style sheet with fixed colors into every plot: 18 KB
each, so the 200 histograms of a dataset's page would be 3.7 MB, and it lacks a confusion matrix.
The packages svg.py, drawsvg and svgwrite only write elements, which ElementTree does as well.
Called by the reports of evaluate and launch_tfjob.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kfp_tfjob.common.escaping import short

from .svg import add, drawing, markup

_CLASSES = ("a", "b", "c")  # of style.css: the colors of series
# Pixels. Two charts fit side by side on a page, and numbers of seven digits to the left.
_WIDTH, _LEFT, _RIGHT = 420, 58, 14
_TOP, _BOTTOM = 28, 46  # the legend is above the lines
_TALL, _FLAT = 360, 250  # a square area for curves from 0 to 1, and the usual one
_MOST_IN_LEGEND = 24  # characters of a name, so that two fit above the lines

Point = tuple[float, float]


def tick(value: float) -> str:
    """Return a number short enough for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def by_epoch(
    metric: str,
    series: Mapping[str, Sequence[Point]],
    marks: Mapping[str, float] | None = None,
) -> Markup:
    """Draw a metric after each epoch.

    Args:
        metric: Its name.
        series: (epoch, value) pairs by name of the line, for example `training`.
        marks: The epochs to mark with an upright line, by the mark's name.
    """
    points = [point for line in series.values() for point in line]
    epochs, values = [x for x, _ in points], [y for _, y in points]
    plot = _Plot(f"{metric} by epoch", axis_ends(epochs, 0), axis_ends(values, 0.5), _FLAT)
    plot.axes("epoch", "", _whole(min(epochs), max(epochs)))
    plot.marks(marks or {})
    plot.lines(series)
    return plot.markup()


def curves(
    title: str,
    axes: tuple[str, str],
    lines: Mapping[str, Sequence[Point]],
    dashed: tuple[Point, Point],
    weights: Mapping[str, Sequence[float]] | None = None,
) -> Markup:
    """Draw lines whose ends are shares.

    Args:
        title: The title of the plot.
        axes: The names of the horizontal and the vertical axis.
        lines: The points of each line, by its name.
        dashed: The ends of a line to compare them with.
        weights: The share of the rows behind each point, by name: the size of its dot.
    """
    plot = _Plot(title, (0, dashed[1][0]), (0, max(dashed[1][0], dashed[1][1])), _TALL)
    plot.axes(*axes)
    plot.line(dashed, "line dashed c")
    plot.lines(lines, weights)
    return plot.markup()


def scatter(true: Sequence[float], predicted: Sequence[float]) -> Markup:
    """Draw predicted against true values."""
    ends = axis_ends([*true, *predicted], 0.5)
    plot = _Plot("Predicted and true values", ends, ends, _TALL)
    plot.axes("true value", "predicted value")
    plot.line([(ends[0], ends[0]), (ends[1], ends[1])], "line dashed c")
    for point in zip(true, predicted, strict=True):
        x, y = plot.at(*point)
        add(plot.svg, "circle", cx=x, cy=y, r=2, class_="dot")
    return plot.markup()


@dataclass
class _Plot:
    """A plot area with a linear scale on each axis."""

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    height: int

    def __post_init__(self) -> None:
        self.svg = drawing(self.title, _WIDTH, self.height)

    def at(self, x: float, y: float) -> Point:
        """Return where a point is drawn."""
        across, up = share_of(x, *self.x), share_of(y, *self.y)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM),
        )

    def axes(self, x: str, y: str, ticks: Sequence[float] = ()) -> None:
        """Draw the grid, the numbers and the names of the axes.

        Args:
            x: Name of the horizontal axis.
            y: Name of the vertical axis.
            ticks: Numbers on the horizontal axis; if empty, round ones.
        """
        for value in round_ticks(self.y):
            start, level = self.at(self.x[0], value)
            add(self.svg, "line", x1=start, x2=_WIDTH - _RIGHT, y1=level, y2=level, class_="grid")
            add(self.svg, "text", tick(value), x=start - 6, y=level + 4, text_anchor="end")
        for value in ticks or round_ticks(self.x):
            across, bottom = self.at(value, self.y[0])
            add(self.svg, "text", tick(value), x=across, y=bottom + 16, text_anchor="middle")
        middle = self.at(_middle(self.x), _middle(self.y))
        add(self.svg, "text", x, x=middle[0], y=self.height - 8, text_anchor="middle")
        turn = f"rotate(-90 12 {middle[1]:g})"
        if y:
            add(self.svg, "text", y, x=12, y=middle[1], text_anchor="middle", transform=turn)

    def marks(self, marks: Mapping[str, float]) -> None:
        """Draw upright dashed lines at these x, each with its name."""
        for index, (name, x) in enumerate(marks.items()):
            across, top = self.at(min(max(x, self.x[0]), self.x[1]), self.y[1])
            bottom = self.height - _BOTTOM
            add(self.svg, "line", x1=across, x2=across, y1=top, y2=bottom, class_="line dashed c")
            at_end = across > _WIDTH - 80
            position = {"x": across - 4 if at_end else across + 4, "y": top + 10 + 12 * (index % 4)}
            add(self.svg, "text", name, **position, text_anchor="end" if at_end else "start")

    def lines(
        self,
        series: Mapping[str, Iterable[Point]],
        weights: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Draw lines of different colors and their legend, and dots of these weights if asked."""
        legend_x = _LEFT
        for index, (name, points) in enumerate(series.items()):
            color = _CLASSES[index % len(_CLASSES)]
            points = list(points)
            self.line(points, f"line {color}" if weights is None else f"line light {color}")
            for point, weight in zip(points, weights[name] if weights else (), strict=False):
                x, y = self.at(*point)
                radius = 1.8 + 6.5 * math.sqrt(weight)
                add(self.svg, "circle", cx=x, cy=y, r=radius, class_=f"fill {color}")
            add(self.svg, "rect", x=legend_x, y=9, width=14, height=3, class_=f"fill {color}")
            label = short(name, _MOST_IN_LEGEND)
            add(self.svg, "text", label, x=legend_x + 20, y=14)
            legend_x += 44 + 6 * len(label)

    def line(self, points: Iterable[Point], style: str) -> None:
        """Draw a line, and a dot if there is only one point."""
        places = [self.at(*point) for point in points]
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        add(self.svg, "polyline", points=coordinates, class_=style)
        if len(places) == 1:
            (x, y) = places[0]
            add(self.svg, "circle", cx=x, cy=y, r=3, class_=style.replace("line", "fill"))

    def markup(self) -> Markup:
        """Return the drawing."""
        return markup(self.svg)


def _middle(ends: tuple[float, float]) -> float:
    return ends[0] / 2 + ends[1] / 2  # the sum may be too large for a float


def round_ticks(ends: tuple[float, float]) -> list[float]:
    """Return four to seven round numbers between the ends, or the ends if there are none."""
    low, high = ends
    size = high / 2 - low / 2
    if not (math.isfinite(size) and size > 0) or size < 1e-9 * max(abs(low), abs(high)):
        return [low, high]
    raw = size / 2.5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)] or [low, high]


def share_of(value: float, low: float, high: float) -> float:
    """Return the position of a value between two ends, 0 to 1."""
    return (value / 2 - low / 2) / ((high / 2 - low / 2) or 1)


def axis_ends(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return the ends of an axis, with room where all values are equal."""
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - room, high + room)


def _whole(first: float, last: float) -> Sequence[float]:
    """Return at most six whole numbers, including the first and the last."""
    first, last = int(first), int(last)
    step = max(-(-(last - first) // 5), 1)
    inner = [number for number in range(first, last, step) if last - number >= step / 2]
    return [*inner, last]
