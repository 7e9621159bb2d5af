"""Charts as inline SVG: no library, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.components.evaluate.text import short, tick
from kfp_tfjob.storage.text import html as escape

COLORS = ("#1a5fb4", "#e66100", "#77767b")
_MOST_POINTS = 1500  # of a scatter plot; 50 bytes each
_BARS = 40  # of a histogram
_SIDE, _LEFT, _BOTTOM = 300, 56, 44


def confusion_matrix(names: Sequence[str], matrix: NDArray[np.int64]) -> str:
    """Draw counts; a row is a true class, its shade the share of the row.

    Args:
        names: (classes,) names.
        matrix: (classes, classes) counts.
    """
    cell = 34 if len(names) <= 12 else 20
    left, top = 130, 110
    size = cell * len(names)
    parts = [_text(left + size / 2, 14, "predicted class", "middle", "axis")]
    parts.append(_text(10, top - 8, "true class", "start", "axis"))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    for i, name in enumerate(names):
        middle = (i + 0.5) * cell
        parts.append(_text(left - 6, top + middle + 4, short(name, 16), "end", "small"))
        x, y = left + middle + 4, top - 6
        parts.append(
            f'<text x="{x:.0f}" y="{y}" class="small" transform="rotate(-50 {x:.0f} {y})">'
            f"{escape(short(name, 16))}</text>"
        )
        for j, other in enumerate(names):
            count, share = int(matrix[i, j]), float(shares[i, j])
            color = COLORS[0] if i == j else COLORS[1]
            parts.append(
                f'<rect x="{left + j * cell}" y="{top + i * cell}" width="{cell - 1}"'
                f' height="{cell - 1}" fill="{color}" fill-opacity="{0.04 + 0.9 * share:.2f}">'
                f"<title>{escape(name)} predicted as {escape(other)}: {count}"
                f" ({share:.1%})</title></rect>"
            )
            if count and cell >= 30:
                shade = "light" if share > 0.5 else "small"
                x, y = left + (j + 0.5) * cell, top + middle + 4
                parts.append(
                    _text(x, y, tick(count) if count >= 10_000 else str(count), "middle", shade)
                )
    return _svg(left + size + 40, top + size + 8, parts, "Confusion matrix")


def roc(curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> str:
    """Draw ROC curves: name to (false positive rate, true positive rate)."""
    frame = _Frame((0, 1), (0, 1))
    parts = frame.axes("false positive rate", "true positive rate")
    parts.append(frame.line(np.array([0, 1]), np.array([0, 1]), "#c0bfbc", "4 4"))
    for index, (name, (fpr, tpr)) in enumerate(curves.items()):
        color = COLORS[index % len(COLORS)]
        parts.append(frame.line(fpr, tpr, color))
        parts.append(
            f'<text x="{_LEFT + _SIDE - 8}" y="{_SIDE - 14 * index}" style="fill:{color}"'
            f' text-anchor="end">{escape(name)}</text>'
        )
    return _svg(_LEFT + _SIDE + 24, _SIDE + _BOTTOM + 10, parts, "ROC curve")


def scatter(true: NDArray[np.float32], predicted: NDArray[np.float32]) -> str:
    """Draw predicted against true values; every k-th row where there are too many."""
    every = max(1, -(-len(true) // _MOST_POINTS))
    true, predicted = true[::every].astype(float), predicted[::every].astype(float)
    ends = (min(true.min(), predicted.min()), max(true.max(), predicted.max()))
    frame = _Frame(ends, ends)
    parts = frame.axes("true value", "predicted value")
    parts.append(frame.line(np.array(ends), np.array(ends), "#c0bfbc", "4 4"))
    for x, y in zip(frame.x(true), frame.y(predicted), strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" class="dot"/>')
    return _svg(_LEFT + _SIDE + 24, _SIDE + _BOTTOM + 10, parts, "Predicted and true values")


def histogram(errors: NDArray[np.float64]) -> str:
    """Draw how the errors, predicted minus true, are spread."""
    low, high = float(errors.min()), float(errors.max())
    # Where float64 has no room for the edges of so many bars, and where all errors are equal.
    least = 2 * _BARS * np.spacing(max(-low, high))
    if high - low < least:
        low, high = low - max(least, 0.5), high + max(least, 0.5)
    counts, edges = np.histogram(errors, _BARS, (low, high))
    frame = _Frame((edges[0], edges[-1]), (0, max(int(counts.max()), 1)))
    parts = frame.axes("predicted minus true", "rows")
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        left, right = frame.x(np.array([low, high]))
        top = frame.y(np.array([count]))[0]
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 1, 1):.1f}"'
            f' height="{_SIDE + 10 - top:.1f}" class="dot"><title>{count} rows from {low:.4g}'
            f" to {high:.4g}</title></rect>"
        )
    return _svg(_LEFT + _SIDE + 24, _SIDE + _BOTTOM + 10, parts, "Errors")


class _Frame:
    """A square plot area with one scale for each axis."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = x, y

    def x(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _LEFT + _SIDE * (values - self._x[0]) / ((self._x[1] - self._x[0]) or 1)

    def y(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return 10 + _SIDE - _SIDE * (values - self._y[0]) / ((self._y[1] - self._y[0]) or 1)

    def line(
        self, x: NDArray[np.float64], y: NDArray[np.float64], color: str, dashes: str = ""
    ) -> str:
        pairs = zip(self.x(x), self.y(y), strict=True)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)
        return (
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"'
            f' stroke-dasharray="{dashes}"/>'
        )

    def axes(self, x: str, y: str) -> list[str]:
        parts = [f'<rect x="{_LEFT}" y="10" width="{_SIDE}" height="{_SIDE}" class="frame"/>']
        for share in (0.0, 0.5, 1.0):
            at = self._x[0] + share * (self._x[1] - self._x[0])
            parts.append(_text(_LEFT + share * _SIDE, _SIDE + 26, tick(at), "middle", "small"))
            at = self._y[0] + share * (self._y[1] - self._y[0])
            parts.append(_text(_LEFT - 5, 14 + (1 - share) * _SIDE, tick(at), "end", "small"))
        parts.append(_text(_LEFT + _SIDE / 2, _SIDE + 44, x, "middle", "axis"))
        middle = 10 + _SIDE / 2
        parts.append(
            f'<text x="14" y="{middle}" class="axis" text-anchor="middle"'
            f' transform="rotate(-90 14 {middle})">{escape(y)}</text>'
        )
        return parts


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        f' role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, style: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">'
        f"{escape(text)}</text>"
    )
