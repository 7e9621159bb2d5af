"""Draws small plots for the rows of a table: histograms, shares, and values with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from markupsafe import Markup

from kfp_tfjob.pages.svg import add, drawing, markup

_WIDTH, _HEIGHT = 160, 36
_NARROW, _LOW = 112, 14  # the size of a plot of one value
_EDGE = 5  # room for a dot at the ends

Interval = tuple[float, float]


def bars(counts: Sequence[int]) -> Markup:
    """Draw a histogram."""
    svg = drawing("histogram", _WIDTH, _HEIGHT)
    width, most = _WIDTH / len(counts), max(*counts, 1)
    heights = (_HEIGHT * count / most for count in counts)
    path = "".join(
        f"M{i * width:.4g} {_HEIGHT}v-{height:.3g}h{width - 1:.3g}v{height:.3g}z"
        for i, height in enumerate(heights)
        if height
    )
    add(svg, "path", d=path, class_="fill")
    return markup(svg)


def compare(bars: Sequence[int], lines: Mapping[str, Sequence[int]]) -> Markup:
    """Draw the shares of some rows in bins, and those of others in the same bins as lines.

    Args:
        bars: Rows by bin; the bars are these.
        lines: Other rows by bin, by the class of the line in style.css: `b` or `c`.
    """
    svg = drawing("rows by bin", _WIDTH, _HEIGHT)
    all_of = [_shares(counts) for counts in (bars, *lines.values())]
    most = max(max(shares, default=0) for shares in all_of) or 1
    width = _WIDTH / max(len(bars), 1)
    drawn = [[_HEIGHT * (1 - share / most) for share in shares] for shares in all_of]
    gap = 1 if width >= 4 else 0
    path = "".join(
        f"M{i * width:.4g} {_HEIGHT}V{top:.3g}h{width - gap:.3g}V{_HEIGHT}z"
        for i, top in enumerate(drawn[0])
        if top < _HEIGHT
    )
    add(svg, "path", d=path, class_="soft")
    for name, tops in zip(lines, drawn[1:], strict=True):
        steps = "".join(f"V{max(top, 0.8):.3g}h{width:.4g}" for top in tops)
        add(svg, "path", d=f"M0 {_HEIGHT}{steps}", class_=f"line {name}")
    return markup(svg)


def bar(share: float) -> Markup:
    """Draw a share, 0 to 1."""
    svg = drawing("share", _WIDTH, 12)
    add(svg, "rect", width=_WIDTH * share, height=12, class_="fill")
    return markup(svg)


def estimate(
    value: float, interval: Interval, ends: Interval, mark: float = math.nan, style: str = ""
) -> Markup:
    """Draw a value as a dot, its interval as a line, and a mark to compare it with.

    Args:
        value: The value; it is not drawn unless it is finite.
        interval: The ends of the line, which may be unknown or beyond the plot.
        ends: The values at both ends of the plot.
        mark: Where the mark is, for instance the value of the champion.
        style: A class of style.css for dot and line: `good`, `bad` or `quiet`.
    """
    if not math.isfinite(value):
        return Markup()
    svg = _row("value and interval", ends, mark)
    left, right = (_place(end if math.isfinite(end) else value, ends) for end in interval)
    add(svg, "path", d=f"M{left:.1f} {_LOW / 2}H{right:.1f}", class_=f"whisker {style}".strip())
    center = _place(value, ends)
    add(svg, "circle", cx=center, cy=_LOW / 2, r=3.5, class_=f"fill {style}".strip())
    return markup(svg)


def _row(label: str, ends: Interval, mark: float) -> ElementTree.Element:
    svg = drawing(label, _NARROW, _LOW)
    add(svg, "path", d=f"M0 {_LOW / 2}H{_NARROW}", class_="grid")
    if math.isfinite(mark):
        here = _place(mark, ends)
        add(svg, "path", d=f"M{here:.1f} 0V{_LOW}", class_="mark")
    return svg


def _place(value: float, ends: Interval) -> float:
    low, high = ends
    share = (value / 2 - low / 2) / ((high / 2 - low / 2) or 1)
    return _EDGE + min(max(share, 0.0), 1.0) * (_NARROW - 2 * _EDGE)


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]
