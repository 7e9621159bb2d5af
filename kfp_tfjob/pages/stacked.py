"""Draws parts of a whole as one stacked bar, with a key for a table's rows.

Called by launch_tfjob's report.
"""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from .svg import add, drawing, markup

_WIDTH, _HEIGHT = 420, 26  # pixels
_SIDE = 12  # of a key
_COLORS, _OPACITIES = ("a", "b", "c"), (1.0, 0.55, 0.28)  # nine parts that look different


def stacked_bar(title: str, parts: Mapping[str, float]) -> Markup:
    """Draw parts, each as wide as its share of their sum; parts are 0 or more."""
    svg = drawing(title, _WIDTH, _HEIGHT)
    largest = max(parts.values(), default=0.0) or 1.0
    total = sum(part / largest for part in parts.values())  # which cannot be infinite
    left = 0.0
    for index, (name, part) in enumerate(parts.items()):
        width = _WIDTH * (part / largest) / (total or 1.0)
        rect = add(svg, "rect", x=left, width=max(width - 1, 0), height=_HEIGHT, **_style(index))
        add(rect, "title", f"{name}: {part:.1f}")
        left += width
    return markup(svg)


def key(index: int) -> Markup:
    """Draw the color of the part at this index."""
    svg = drawing("color of the bar's part", _SIDE, _SIDE)
    add(svg, "rect", width=_SIDE, height=_SIDE, **_style(index))
    return markup(svg)


def _style(index: int) -> dict[str, str]:
    opacity = _OPACITIES[index // len(_COLORS) % len(_OPACITIES)]
    return {"class_": f"fill {_COLORS[index % len(_COLORS)]}", "fill_opacity": f"{opacity:g}"}
