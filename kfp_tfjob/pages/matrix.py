"""Draws confusion matrices.

Called by evaluate's `plots.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from kfp_tfjob.common.escaping import short

from .charts import tick
from .svg import add, drawing, markup

_MOST_NAME = 16  # characters of a class in a label: the matrix stays wider than its labels
_MOST_IN_TIP = 40  # of a class in the tooltip of a cell: there may be 900 cells
_LETTER = 6.4  # pixels; the mean width of a letter in the page's font
_DARK = 0.68  # opacity: above it, text in the color of the page is easier to read, in both themes
MOST_WITH_NUMBERS = 12  # classes of a matrix with a number in each cell

Counts = Sequence[Sequence[int]]


def confusion_matrix(names: Sequence[str], counts: Counts) -> Markup:
    """Draw counts; a row is a true class, and the shade of a cell is its share of the row.

    Args:
        names: The names of the classes.
        counts: One row for each true class, one column for each predicted class.
    """
    numbers = len(names) <= MOST_WITH_NUMBERS
    side = 72 if len(names) <= 3 else 40 if numbers else 18
    labels = [short(name, _MOST_NAME) for name in names]
    longest = _LETTER * max(len(label) for label in labels)
    x_start, y_start = max(30.0, longest + 24), 26 + 0.77 * longest + 10
    size = side * len(names)
    # The last label turns beyond the matrix.
    svg = drawing(
        "Confusion matrix",
        x_start + size + _LETTER * 0.64 * len(labels[-1]) + 12,
        y_start + size + 6,
    )
    add(svg, "text", "predicted", x=x_start + size / 2, y=12, text_anchor="middle")
    middle = y_start + size / 2
    add(svg, "text", "true", x=10, y=middle, transform=f"rotate(-90 10 {middle:g})", class_="mid")
    for i, label in enumerate(labels):
        middle = (i + 0.5) * side
        add(svg, "text", label, x=x_start - 6, y=y_start + middle + 4, text_anchor="end")
        x, y = x_start + middle + 4, y_start - 6
        add(svg, "text", label, x=x, y=y, transform=f"rotate(-50 {x:g} {y:g})")
        for j in range(len(labels)):
            count = counts[i][j]
            share = count / max(sum(counts[i]), 1)
            opacity = 0.07 + 0.88 * share if count else 1.0
            style = "void" if not count else "fill" if i == j else "fill b"
            x, y = x_start + j * side, y_start + i * side
            box = add(svg, "rect", x=x, y=y, width=side - 1, height=side - 1, class_=style)
            box.set("fill-opacity", f"{opacity:.2f}")
            add(box, "title", f"{_pair(names, i, j)}: {count:,} ({share:.1%})")
            if numbers and count:
                position = {"x": x + side / 2, "y": y + side / 2 + 4, "text_anchor": "middle"}
                text = tick(count) if count >= 10_000 else str(count)
                add(svg, "text", text, **position, class_="on" if opacity > _DARK else "ink")
    return markup(svg)


def _pair(names: Sequence[str], i: int, j: int) -> str:
    return f"{short(names[i], _MOST_IN_TIP)} predicted as {short(names[j], _MOST_IN_TIP)}"
