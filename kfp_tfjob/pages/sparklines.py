"""Draws small plots for a table's rows: histograms and shares.

Called by prepare_data's report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from .svg import add, drawing, markup

_WIDTH, _HEIGHT = 160, 36  # pixels; a cell of a table with several other columns


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


def compare(bars: Sequence[int], lines: Mapping[str, Sequence[float]]) -> Markup:
    """Draw the shares of rows by bin as bars, and the shares of other rows as lines over them.

    Args:
        bars: Rows by bin, for the bars.
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


def _shares(counts: Sequence[float]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]
