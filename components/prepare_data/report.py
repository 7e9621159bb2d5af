"""The statistics of a dataset as one HTML page without anything from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.storage.text import html as escape

MOST_FEATURES = 200
_REUSED = (
    "An earlier run prepared this dataset from the same data with the same options: it was used"
    " again as it is."
)
_MOST_CLASSES = 100
_MOST_NAME = 100
_WIDTH, _HEIGHT = 160, 36  # pixels of a histogram
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;color:#1f2328;margin:24px;max-width:1100px}
table{border-collapse:collapse;margin:8px 0 24px}
th,td{padding:3px 12px 3px 0;text-align:right;border-bottom:1px solid #e3e6ea}
th{color:#59636e;font-weight:600}
th:first-child,td:first-child{text-align:left;max-width:320px;overflow-wrap:anywhere}
rect{fill:#4a7fb5}.note{color:#59636e}.warning{color:#9a5b00}
"""


def render(schema: Mapping[str, Any], statistics: Mapping[str, Any], reused: bool = False) -> str:
    """Return the report.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        reused: Whether an earlier run prepared this dataset.

    Returns:
        A page of less than 1 MB; from 200 features and 100 classes on it shows the first ones.
    """
    rows = statistics["rows"]
    parts = [
        f"<h1>{escape(schema['task'].capitalize())} of {_name(schema['label']['name'])}</h1>",
        f"<p>{len(schema['features']):,} features. {rows['read']:,} rows read,"
        f" {statistics['bad_rows']['dropped']:,} bad rows dropped,"
        f" {statistics['duplicates']:,} rows with the features of another row.</p>",
        *([f"<p>{_REUSED}</p>"] if reused else []),
        *(f'<p class="warning">{escape(text)}</p>' for text in statistics["warnings"]),
        "<h2>Rows</h2>",
        _table(
            ["split", "rows", "share", "fraction asked for"],
            [
                [
                    escape(name),
                    f"{split['rows']:,}",
                    _number(split["rows"] / sum(s["rows"] for s in schema["splits"].values())),
                    _number(schema["split"]["fractions"][name]),
                ]
                for name, split in schema["splits"].items()
            ],
        ),
        "<h2>Label</h2>",
        *_label(schema, statistics["label"]),
        "<h2>Features</h2>",
        '<p class="note">Over train; the histograms over a sample of it.</p>',
        *_features(statistics["features"]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Dataset</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _label(schema: Mapping[str, Any], label: Mapping[str, Any]) -> list[str]:
    splits = list(schema["splits"])
    classes = schema["label"]["classes"]
    if classes is None:
        keys = ["count", "mean", "std", "min", "max"]
        table = _table(
            ["split", *keys],
            [[escape(name), *(_number(label[name][key]) for key in keys)] for name in splits],
        )
        return [table, _bars(label["histogram"])]
    counts = label["counts"]
    most = max(counts["train"].values())
    shown = [
        [_name(name), *(f"{counts[split][name]:,}" for split in splits), _bar(counts, name, most)]
        for name in classes[:_MOST_CLASSES]
    ]
    note = _cut(len(classes), _MOST_CLASSES, "classes")
    return [_table(["class", *splits, "train"], shown), note]


def _features(features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    keys = ["mean", "std", "min", "max", "zeros"]
    shown = [
        [_name(name), *(_number(column[key]) for key in keys), _bars(column["histogram"])]
        for name, column in list(features.items())[:MOST_FEATURES]
    ]
    note = _cut(len(features), MOST_FEATURES, "features")
    return [_table(["feature", *keys, "histogram"], shown), note]


def _cut(total: int, shown: int, what: str) -> str:
    return f'<p class="note">{total - shown:,} more {what}.</p>' if total > shown else ""


def _name(name: str) -> str:
    return escape(name if len(name) <= _MOST_NAME else name[: _MOST_NAME - 1] + "…")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table; the cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _bars(counts: list[int]) -> str:
    """Return a histogram as SVG."""
    width, most = _WIDTH / len(counts), max(counts)
    bars = []
    for i, count in enumerate(counts):
        height = _HEIGHT * count / most
        bars.append(
            f'<rect x="{i * width:.1f}" y="{_HEIGHT - height:.1f}"'
            f' width="{width - 1:.1f}" height="{height:.1f}"/>'
        )
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(bars)}</svg>'


def _bar(counts: Mapping[str, Mapping[str, int]], name: str, most: int) -> str:
    width = _WIDTH * counts["train"][name] / most
    return f'<svg width="{_WIDTH}" height="12"><rect width="{width:.1f}" height="12"/></svg>'
