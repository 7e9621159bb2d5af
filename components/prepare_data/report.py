"""Renders the statistics of a dataset as one HTML page without external references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.text import short

MOST_FEATURES = 200
_MOST_CLASSES = 100


def render(schema: Mapping[str, Any], statistics: Mapping[str, Any], reused: bool = False) -> str:
    """Return the report.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        reused: Whether an earlier run prepared this dataset.

    Returns:
        A page of less than 1 MB, with at most the first 200 features and the first 100 classes.
    """
    counts = statistics["label"].get("counts")
    return fill(
        "components/prepare_data/report.html.j2",
        title=f"{schema['task'].capitalize()} of {short(schema['label']['name'], 100)}",
        schema=schema,
        statistics=statistics,
        reused=reused,
        rows=sum(split["rows"] for split in schema["splits"].values()),
        largest=max(counts["train"].values()) if counts else None,
        features=list(statistics["features"].items())[:MOST_FEATURES],
        most_classes=_MOST_CLASSES,
        number=_number,
        bars=charts.bars,
        bar=charts.bar,
    )


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
