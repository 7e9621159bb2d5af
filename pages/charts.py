"""Draws plots as inline SVG in the colors of pages/style.css, so they follow light and dark mode.

They are drawn by hand because no library fits. matplotlib takes more than a second to import and
fixes its colors. pygal 3.1 puts a script and a style sheet with fixed colors into every plot: 18 KB
each, so the 200 histograms of a dataset's page would be 3.7 MB, and it has no confusion matrix.
svg.py, drawsvg and svgwrite only write elements, which ElementTree does as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from kfp_tfjob.storage.text import line, short

_CLASSES = ("a", "b", "c")  # of style.css: the colors of series
_WIDTH, _LEFT, _RIGHT = 420, 58, 14
_TOP, _BOTTOM = 28, 46  # the legend is above the lines
_TALL, _FLAT = 360, 250
_MOST_NAME = 16  # characters of a class beside a confusion matrix
_MOST_IN_TIP = 40  # characters of a class in the tooltip of a cell: there may be 900 cells
_MOST_IN_LEGEND = 24
_SMALL, _SMALL_HEIGHT = 160, 36  # of a plot in the row of a table

Point = tuple[float, float]


def tick(value: float) -> str:
    """Return a number short enough for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def by_epoch(metric: str, series: Mapping[str, Sequence[Point]]) -> Markup:
    """Draw a metric after each epoch.

    Args:
        metric: Its name.
        series: (epoch, value) pairs by name of the line, for instance `training`.
    """
    points = [point for line in series.values() for point in line]
    epochs, values = [x for x, _ in points], [y for _, y in points]
    plot = _Plot(f"{metric} by epoch", _between(epochs, 0), _between(values, 0.5), _FLAT)
    plot.axes("epoch", "", _whole(min(epochs), max(epochs)))
    plot.lines(series)
    return plot.markup()


def roc(curves: Mapping[str, Iterable[Point]]) -> Markup:
    """Draw ROC curves from points (false positive rate, true positive rate) by name."""
    plot = _Plot("ROC curve", (0, 1), (0, 1), _TALL)
    plot.axes("false positive rate", "true positive rate")
    plot.line([(0, 0), (1, 1)], "line dashed c")
    plot.lines(curves)
    return plot.markup()


def precision_recall(curves: Mapping[str, Iterable[Point]], share: float) -> Markup:
    """Draw precision by recall.

    Args:
        curves: Points (recall, precision) by name.
        share: The precision of a model that knows nothing.
    """
    plot = _Plot("Precision and recall", (0, 1), (0, 1), _TALL)
    plot.axes("recall", "precision")
    plot.line([(0, share), (1, share)], "line dashed c")
    plot.lines(curves)
    return plot.markup()


def calibration(curves: Mapping[str, Sequence[Point]]) -> Markup:
    """Draw how often a prediction comes true, by its probability.

    Args:
        curves: Points (mean probability, share that came true) by name.
    """
    most = max((max(point) for points in curves.values() for point in points), default=1.0)
    ends = (0.0, most if 0 < most < 0.5 else 1.0)  # rare classes have small probabilities
    plot = _Plot("Calibration", ends, ends, _TALL)
    plot.axes("predicted probability", "share that came true")
    plot.line([(0, 0), (ends[1], ends[1])], "line dashed c")
    plot.lines(curves, dots=True)
    return plot.markup()


def residuals(predicted: Sequence[float], errors: Sequence[float]) -> Markup:
    """Draw the errors, predicted minus true, by the predicted value."""
    most = max((abs(error) for error in errors), default=0.0) or 0.5
    plot = _Plot("Errors by prediction", _between(predicted, 0.5), (-most, most), _FLAT)
    plot.axes("predicted value", "predicted minus true")
    plot.line([(plot.x[0], 0), (plot.x[1], 0)], "line dashed c")
    for point in zip(predicted, errors, strict=True):
        x, y = plot.at(*point)
        _add(plot.svg, "circle", cx=x, cy=y, r=2, class_="dot")
    return plot.markup()


def scatter(true: Sequence[float], predicted: Sequence[float]) -> Markup:
    """Draw predicted against true values."""
    ends = _between([*true, *predicted], 0.5)
    plot = _Plot("Predicted and true values", ends, ends, _TALL)
    plot.axes("true value", "predicted value")
    plot.line([(ends[0], ends[0]), (ends[1], ends[1])], "line dashed c")
    for point in zip(true, predicted, strict=True):
        x, y = plot.at(*point)
        _add(plot.svg, "circle", cx=x, cy=y, r=2, class_="dot")
    return plot.markup()


def histogram(title: str, what: str, edges: Sequence[float], counts: Sequence[int]) -> Markup:
    """Draw how many rows fall between two edges.

    Args:
        title: The title of the plot.
        what: The name of the horizontal axis.
        edges: The edges of the bars, one more than counts.
        counts: The number of rows in each bar.
    """
    plot = _Plot(title, (edges[0], edges[-1]), (0, max(*counts, 1)), _FLAT)
    plot.axes(what, "rows")
    bottom = plot.at(0, 0)[1]
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        (x, y), (right, _) = plot.at(low, count), plot.at(high, count)
        bar = _add(
            plot.svg, "rect", x=x, y=y, width=max(right - x - 1, 1), height=bottom - y, class_="dot"
        )
        _add(bar, "title", f"{count} rows from {low:.4g} to {high:.4g}")
    return plot.markup()


def confusion_matrix(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    """Draw counts; a row is a true class, and the shade of a cell is its share of the row.

    Args:
        names: The names of the classes.
        counts: One row for each true class, one column for each predicted class.
    """
    cell = 34 if len(names) <= 12 else 20
    left, top = 130, 106
    size = cell * len(names)
    svg = _svg("Confusion matrix", left + size + 50, top + size + 8)
    _add(svg, "text", "predicted class", x=left + size / 2, y=14, text_anchor="middle")
    _add(svg, "text", "true class", x=6, y=top - 8)
    for i, (name, row) in enumerate(zip(names, counts, strict=True)):
        middle = (i + 0.5) * cell
        label = short(name, _MOST_NAME)
        _add(svg, "text", label, x=left - 6, y=top + middle + 4, text_anchor="end")
        x, y = left + middle + 4, top - 6
        _add(svg, "text", label, x=x, y=y, transform=f"rotate(-50 {x:g} {y:g})")
        for j, (other, count) in enumerate(zip(names, row, strict=True)):
            share = count / max(sum(row), 1)
            box = _add(
                svg,
                "rect",
                x=left + j * cell,
                y=top + i * cell,
                width=cell - 1,
                height=cell - 1,
                class_="fill" if i == j else "fill b",
                fill_opacity=f"{0.05 + 0.9 * share:.2f}",
            )
            tip = f"{short(name, _MOST_IN_TIP)} predicted as {short(other, _MOST_IN_TIP)}"
            _add(box, "title", f"{tip}: {count} ({share:.1%})")
            if count and cell >= 30:
                x, y = left + (j + 0.5) * cell, top + middle + 4
                shown = tick(count) if count >= 10_000 else str(count)
                side = {"class_": "on"} if share > 0.5 else {}
                _add(svg, "text", shown, x=x, y=y, text_anchor="middle", **side)
    return _markup(svg)


def bars(counts: Sequence[int]) -> Markup:
    """Draw a histogram for the row of a table."""
    svg = _svg("histogram", _SMALL, _SMALL_HEIGHT)
    width, most = _SMALL / len(counts), max(*counts, 1)
    heights = (_SMALL_HEIGHT * count / most for count in counts)
    path = "".join(
        f"M{i * width:.4g} {_SMALL_HEIGHT}v-{height:.3g}h{width - 1:.3g}v{height:.3g}z"
        for i, height in enumerate(heights)
        if height
    )
    _add(svg, "path", d=path, class_="fill")
    return _markup(svg)


def compare(bars: Sequence[int], lines: Mapping[str, Sequence[int]]) -> Markup:
    """Draw the shares of some rows in bins, and those of others in the same bins as lines.

    Args:
        bars: Rows by bin; the bars are these.
        lines: Other rows by bin, by the class of the line in style.css: `b` or `c`.
    """
    svg = _svg("rows by bin", _SMALL, _SMALL_HEIGHT)
    all_of = [_shares(counts) for counts in (bars, *lines.values())]
    most = max(max(shares, default=0) for shares in all_of) or 1
    width = _SMALL / max(len(bars), 1)
    drawn = [[_SMALL_HEIGHT * (1 - share / most) for share in shares] for shares in all_of]
    gap = 1 if width >= 4 else 0
    path = "".join(
        f"M{i * width:.4g} {_SMALL_HEIGHT}V{top:.3g}h{width - gap:.3g}V{_SMALL_HEIGHT}z"
        for i, top in enumerate(drawn[0])
        if top < _SMALL_HEIGHT
    )
    _add(svg, "path", d=path, class_="soft")
    for name, tops in zip(lines, drawn[1:], strict=True):
        steps = "".join(f"V{max(top, 0.8):.3g}h{width:.4g}" for top in tops)
        _add(svg, "path", d=f"M0 {_SMALL_HEIGHT}{steps}", class_=f"line {name}")
    return _markup(svg)


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]


def bar(share: float) -> Markup:
    """Draw a share, 0 to 1, for the row of a table."""
    svg = _svg("share", _SMALL, 12)
    _add(svg, "rect", width=_SMALL * share, height=12, class_="fill")
    return _markup(svg)


@dataclass
class _Plot:
    """A plot area with a linear scale on each axis."""

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    height: int

    def __post_init__(self) -> None:
        self.svg = _svg(self.title, _WIDTH, self.height)

    def at(self, x: float, y: float) -> Point:
        """Return where a point is drawn."""
        across, up = _share(x, *self.x), _share(y, *self.y)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM),
        )

    def axes(self, x: str, y: str, ticks: Sequence[float] = ()) -> None:
        """Draw the grid, the numbers and the names of the axes.

        Args:
            x: Name of the horizontal axis.
            y: Name of the vertical axis.
            ticks: Numbers on the horizontal axis; if empty, its ends and its middle.
        """
        for value in (self.y[0], _middle(self.y), self.y[1]):
            left, here = self.at(self.x[0], value)
            _add(self.svg, "line", x1=left, x2=_WIDTH - _RIGHT, y1=here, y2=here, class_="grid")
            _add(self.svg, "text", tick(value), x=left - 6, y=here + 4, text_anchor="end")
        for value in ticks or (self.x[0], _middle(self.x), self.x[1]):
            here, bottom = self.at(value, self.y[0])
            _add(self.svg, "text", tick(value), x=here, y=bottom + 16, text_anchor="middle")
        middle = self.at(_middle(self.x), _middle(self.y))
        _add(self.svg, "text", x, x=middle[0], y=self.height - 8, text_anchor="middle")
        turn = f"rotate(-90 12 {middle[1]:g})"
        if y:
            _add(self.svg, "text", y, x=12, y=middle[1], text_anchor="middle", transform=turn)

    def lines(self, series: Mapping[str, Iterable[Point]], dots: bool = False) -> None:
        """Draw lines of different colors and their legend, and a dot for each point if asked."""
        left = _LEFT
        for index, (name, points) in enumerate(series.items()):
            color = _CLASSES[index % len(_CLASSES)]
            points = list(points)
            self.line(points, f"line {color}")
            for x, y in (self.at(*point) for point in points if dots):
                _add(self.svg, "circle", cx=x, cy=y, r=3, class_=f"fill {color}")
            _add(self.svg, "rect", x=left, y=9, width=14, height=3, class_=f"fill {color}")
            label = short(name, _MOST_IN_LEGEND)
            _add(self.svg, "text", label, x=left + 20, y=14)
            left += 44 + 6 * len(label)

    def line(self, points: Iterable[Point], style: str) -> None:
        """Draw a line, and a dot if there is only one point."""
        places = [self.at(*point) for point in points]
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        _add(self.svg, "polyline", points=shown, class_=style)
        if len(places) == 1:
            (x, y) = places[0]
            _add(self.svg, "circle", cx=x, cy=y, r=3, class_=style.replace("line", "fill"))

    def markup(self) -> Markup:
        return _markup(self.svg)


def _middle(ends: tuple[float, float]) -> float:
    return ends[0] / 2 + ends[1] / 2  # the sum may be too large for a float


def _share(value: float, low: float, high: float) -> float:
    return (value / 2 - low / 2) / ((high / 2 - low / 2) or 1)


def _between(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return the ends of an axis, with room where all values are equal."""
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - room, high + room)


def _whole(first: float, last: float) -> Sequence[float]:
    """Return at most six whole numbers, including the first and the last."""
    first, last = int(first), int(last)
    step = max(-(-(last - first) // 5), 1)
    inner = [number for number in range(first, last, step) if last - number >= step / 2]
    return [*inner, last]


def _svg(label: str, width: float, height: float) -> ElementTree.Element:
    svg = ElementTree.Element("svg", viewBox=f"0 0 {width:g} {height:g}", role="img")
    svg.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "aria-label": line(label)}
    return svg


def _add(
    parent: ElementTree.Element, tag: str, text: str = "", **attributes: Any
) -> ElementTree.Element:
    """Add an element; `text_anchor` is the attribute `text-anchor`, `class_` is `class`."""
    child = ElementTree.SubElement(parent, tag)
    for name, value in attributes.items():
        shown = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        child.set(name.rstrip("_").replace("_", "-"), shown)
    child.text = line(text) or None
    return child


def _markup(svg: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
