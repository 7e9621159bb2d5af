"""The pages of a training: its curves, and its job. They need nothing from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_tfjob.components.launch_tfjob.progress import TrainingHistory
from kfp_tfjob.components.launch_tfjob.render import to_yaml
from kfp_tfjob.storage.text import html as escape

_WIDTH, _HEIGHT = 420, 256
# The legend stands above the lines, wherever they go.
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 28, 34
_COLOURS = {"training": "#1b6ac9", "validation": "#c9571b"}
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
figure { display: inline-block; margin: 0 1.5em 1.5em 0 }
figcaption { font-weight: 600 }
svg text { font-size: 11px; fill: #444 }
td, th { padding: .1em 1em .1em 0; text-align: left }
td + td { text-align: right; font-variant-numeric: tabular-nums }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px }
"""


def curves_html(progress: TrainingHistory, title: str) -> str:
    """Return a page with a chart for each metric, the final values, and where the time went.

    Args:
        progress: What the chief reported.
        title: Of the page.
    """
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for epoch in progress.epochs:
        for name, value in epoch.metrics.items():
            kind = "validation" if name.startswith("val_") else "training"
            points = series.setdefault(name.removeprefix("val_"), {}).setdefault(kind, [])
            points.append((epoch.number, value))
    parts = [_chart(name, series[name]) for name in sorted(series, key=lambda n: (n != "loss", n))]
    if not parts:
        parts = ["<p>The program reported no epochs.</p>"]
    if progress.final:
        parts.append(_table("final", {name: _short(x) for name, x in progress.final.items()}))
    if progress.seconds:
        spent = {name: f"{seconds:.1f} s" for name, seconds in progress.seconds.items()}
        parts.append(_table("time of the chief", spent))
    if progress.dropped:
        names = escape(", ".join(progress.dropped))
        parts.append(f"<p>Not shown where they were not finite numbers: {names}.</p>")
    return _page(title, parts)


def job_html(manifest: Mapping[str, Any], tensorboard: str) -> str:
    """Return a page with what to type for TensorBoard, and the TFJob as YAML.

    Args:
        manifest: The TFJob.
        tensorboard: The command.
    """
    job = "\n".join(map(escape, to_yaml(manifest).splitlines()))
    parts = [
        "<p>TensorBoard, on your machine, while the job trains and afterwards, with your keys of"
        " the store in the AWS environment:</p>",
        f"<pre>{escape(tensorboard)}</pre>",
        "<p>The job:</p>",
        f"<pre>{job}</pre>",
    ]
    return _page(f"{manifest['kind']} {manifest['metadata']['name']}", parts)


def _page(title: str, parts: Sequence[str]) -> str:
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{escape(title)}</h1>" + "\n".join(parts)
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


def _table(title: str, values: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{value}</td></tr>"
        for name, value in sorted(values.items())
    )
    return f"<table><tr><th>{title}</th><th></th></tr>{rows}</table>"


def _chart(name: str, series: dict[str, list[tuple[int, float]]]) -> str:
    points = [point for line in series.values() for point in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if low == high:
        low, high = low - 0.5, high + 0.5
    span = max(last - first, 1)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / span * (_WIDTH - _LEFT - _RIGHT)
        up = (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return round(_LEFT + across, 1), round(_HEIGHT - _BOTTOM - up, 1)

    shapes = [_axes(first, last, low, high, at)]
    for index, (kind, line) in enumerate(sorted(series.items())):
        colour = _COLOURS[kind]
        path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line))
        shapes.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        if len(line) == 1:
            x, y = at(*line[0])
            shapes.append(f"<circle cx='{x}' cy='{y}' r='3' fill='{colour}'/>")
        x = _LEFT + 96 * index
        shapes.append(f"<rect x='{x}' y='7' width='14' height='3' fill='{colour}'/>")
        shapes.append(f"<text x='{x + 20}' y='12' style='fill:{colour}'>{kind}</text>")
    label = f"{escape(name)} by epoch"
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{label}'>"
        f"{''.join(shapes)}</svg></figure>"
    )


def _axes(first: int, last: int, low: float, high: float, at) -> str:
    marks = []
    for value in (low, (low + high) / 2, high):
        x, y = at(first, value)
        marks.append(f"<line x1='{x}' x2='{_WIDTH - _RIGHT}' y1='{y}' y2='{y}' stroke='#ddd'/>")
        marks.append(f"<text x='{x - 6}' y='{y + 4}' text-anchor='end'>{_short(value)}</text>")
    for epoch in _ticks(first, last):
        x, y = at(epoch, low)
        marks.append(f"<text x='{x}' y='{y + 16}' text-anchor='middle'>{epoch}</text>")
    return "".join(marks)


def _ticks(first: int, last: int) -> Sequence[int]:
    """Return at most six epochs, the first and the last among them."""
    step = max(-(-(last - first) // 5), 1)
    inner = [epoch for epoch in range(first, last, step) if last - epoch >= step / 2]
    return [*inner, last]


def _short(value: float) -> str:
    return f"{value:.4g}"
