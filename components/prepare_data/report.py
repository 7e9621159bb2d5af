"""Renders the statistics of a dataset as one HTML page without external references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_tfjob.components.prepare_data import dates
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.text import short
from kfp_tfjob.storage.words import counted
from kfp_tfjob.trainer.coding import BOOLEAN, CATEGORY, DATE, NUMBER, TEXT
from kfp_tfjob.trainer.pictures import PICTURE

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
        dropped=list(_left_out(schema, statistics)),
        gaps=list(_gaps(schema, statistics)),
        most_features=MOST_FEATURES,
        most_classes=_MOST_CLASSES,
        number=_number,
        bars=charts.bars,
        bar=charts.bar,
    )


def _left_out(
    schema: Mapping[str, Any], statistics: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield what the model does not get, and why."""
    for item in schema.get("left_out", ()):
        yield f"column {item['name']}", item["reason"]
    for name, rows in statistics.get("rows_left_out", {}).items():
        yield f"{rows:,} rows", f"a gap in {name}, and the rule drop in data_options.missing"
    for rule, rows in statistics["bad_rows"].get("rules", {}).items():
        yield f"{rows:,} bad rows", rule


def _gaps(schema: Mapping[str, Any], statistics: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the columns with gaps in train, those with the most gaps first."""
    found = []
    for feature, coding in zip(schema["features"], schema.get("coding", ()), strict=False):
        column = statistics["features"][feature["name"]]
        if not column["missing"]:
            continue
        rule = coding.get("missing", {"rule": "a code of its own", "value": None})
        value = rule["value"]
        if value is None:
            shown = ""
        elif column["kind"] == DATE:
            shown = dates.shown(value)
        else:
            shown = str(bool(value)).lower() if column["kind"] == BOOLEAN else _number(value)
        found.append(
            {
                "name": feature["name"],
                "missing": column["missing"],
                "share": column["missing"] / (column["count"] + column["missing"]),
                "rule": rule["rule"],
                "value": shown,
            }
        )
    yield from sorted(found, key=lambda gap: -gap["missing"])


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
    if column["kind"] == PICTURE:
        return _pictures(column)
    if column["kind"] == TEXT:
        return f"hashed into {counted(column['bins'], 'bin')}"
    most = ", ".join(f"{text} ({count:,})" for text, count in column["top"][:_MOST_TEXTS])
    rare = f", {counted(column['rare'], 'row')} with rare ones" if column["rare"] else ""
    return f"{counted(column['distinct'], 'text')}{rare}: {most}"


def _pictures(column: Mapping[str, Any]) -> str:
    """Return the formats, modes and sizes of pictures, in words."""
    kinds = {**column["formats"], **column["modes"]}
    sizes = ", ".join(f"{width} x {height} ({n:,})" for width, height, n in column["sizes"][:5])
    more = f" and {column['distinct_sizes'] - 5:,} more" if column["distinct_sizes"] > 5 else ""
    counts = ", ".join(f"{name} {count:,}" for name, count in kinds.items())
    return f"{counts}; width x height: {sizes}{more}"
