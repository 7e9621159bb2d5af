"""Renders the statistics of a dataset as one HTML page without external references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.text import short
from kfp_tfjob.storage.words import counted
from kfp_tfjob.trainer.coding import BOOLEAN, CATEGORY, DATE, NUMBER, TEXT

MOST_FEATURES = 200
_MOST_CLASSES = 100
_MOST_TEXTS = 5  # of a category


def render(schema: Mapping[str, Any], statistics: Mapping[str, Any], reused: bool = False) -> str:
    """Return the report.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        reused: Whether an earlier run prepared this dataset.

    Returns:
        A page of less than 1 MB, with at most the first 200 features of numbers, 200 others
        and the first 100 classes.
    """
    counts = statistics["label"].get("counts")
    columns = list(statistics["features"].items())
    numbers = [item for item in columns if item[1].get("kind", NUMBER) == NUMBER]
    others = [item for item in columns if item[1].get("kind", NUMBER) != NUMBER]
    return fill(
        "components/prepare_data/report.html.j2",
        title=f"{schema['task'].capitalize()} of {short(schema['label']['name'], 100)}",
        schema=schema,
        statistics=statistics,
        reused=reused,
        rows=sum(split["rows"] for split in schema["splits"].values()),
        largest=max(counts["train"].values()) if counts else None,
        features=numbers[:MOST_FEATURES],
        numbers=len(numbers),
        has_gaps=any("missing" in column for _, column in numbers),
        others=others[:MOST_FEATURES],
        all_others=len(others),
        heights=_heights,
        words=_words,
        most_classes=_MOST_CLASSES,
        number=_number,
        bars=charts.bars,
        bar=charts.bar,
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _heights(column: Mapping[str, Any]) -> list[int]:
    """Return the counts to draw of a column that is no number; none for a hashed text."""
    if column["kind"] == BOOLEAN:
        return [column["false"], column["true"]]
    if column["kind"] == CATEGORY:
        return [count for _, count in column["top"]]
    return column.get("histogram", [])


def _words(column: Mapping[str, Any]) -> str:
    """Return the values of a column that is no number, in words."""
    if not column["count"]:
        return "none"
    if column["kind"] == BOOLEAN:
        return f"true in {column['true'] / column['count']:.1%}"
    if column["kind"] == DATE:
        return f"{column['min']} to {column['max']}"
    if column["kind"] == TEXT:
        return f"hashed into {counted(column['bins'], 'bin')}"
    most = ", ".join(f"{text} ({count:,})" for text, count in column["top"][:_MOST_TEXTS])
    rare = f", {counted(column['rare'], 'row')} with rare ones" if column["rare"] else ""
    return f"{counted(column['distinct'], 'text')}{rare}: {most}"
