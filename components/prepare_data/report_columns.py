"""Prepares the rows of the tables of columns in the report, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kfp_tfjob.components.prepare_data.data_validation import Comparison, Validation
from kfp_tfjob.components.prepare_data.drift import Drift
from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, NUMBER, TEXT
from kfp_tfjob.features.pictures import PICTURE
from kfp_tfjob.pages import small
from kfp_tfjob.storage.formatting import counted

MOST_COLUMNS = 200
_MOST_TEXTS = 5  # of a category
_MOST_BARS = 24  # the rest of a category's values is one bar
_USUAL = 0.1  # PSI
_TITLES = {
    NUMBER: "Numbers",
    BOOLEAN: "Booleans",
    CATEGORY: "Categories",
    DATE: "Dates",
    TEXT: "Hashed texts",
    PICTURE: "Pictures",
}
_FIGURES = ("mean", "std", "min", "max", "zeros")


@dataclass(frozen=True)
class Row:
    """A column in its table.

    Attributes:
        name: The column.
        plot: Its rows by bin: train as bars, test and the champion's data as lines.
        shape: The histogram of a number or a date.
        cells: The figures of a number, or the values as text.
        gaps: The gaps in train.
        drifts: Style and text of the drift from the champion's data, then of that of test.
    """

    name: str
    plot: Markup | str
    shape: Markup | str
    cells: list[str]
    gaps: str
    drifts: list[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    """The columns of one kind.

    Attributes:
        title: The heading.
        heads: The names of `cells`.
        has_bins: Whether a row has a plot of its bins.
        has_shape: Whether the rows have a histogram.
        rows: The columns.
        total: How many columns there are of this kind.
    """

    title: str
    heads: tuple[str, ...]
    has_bins: bool
    has_shape: bool
    rows: list[Row]
    total: int


def sections(
    schema: Mapping[str, Any], statistics: Mapping[str, Any], validation: Validation | None
) -> list[Section]:
    """Return the tables of columns; together they have at most MOST_COLUMNS rows."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in _TITLES}
    for name, column in statistics["features"].items():
        by_kind[column.get("kind", NUMBER)].append(name)
    left, found = MOST_COLUMNS, []
    entries = _entries(validation)
    for kind, names in by_kind.items():
        if names:
            rows = [_row(name, kind, statistics, validation, entries) for name in names[:left]]
            left -= len(rows)
            heads = _FIGURES if kind == NUMBER else ("values",)
            has = any(row.plot for row in rows), kind in (NUMBER, DATE)
            found.append(Section(_TITLES[kind], heads, *has, rows, len(names)))
    return found


def figure(value: float) -> str:
    """Return a number as the tables show it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def drift_cell(item: Drift | None, largest: float | None) -> tuple[str, str]:
    """Return the style and the text of a PSI, by the largest one that is allowed, if any."""
    if item is None:
        return "", ""
    beyond = largest is not None and item.psi > largest
    style = "bad" if beyond else "warning" if item.psi > _USUAL else ""
    return "" if item.is_chance else style, f"{item.psi:.3f}"


_Entry = Mapping[str, Any]


def _entries(validation: Validation | None) -> dict[str, tuple[_Entry, _Entry | None]]:
    """Return by column the counts of this data, and those of the champion's over the same bins."""
    if not validation or not validation.distributions:
        return {}
    found: dict[str, tuple[_Entry, _Entry | None]] = {
        entry["name"]: (entry, None) for entry in validation.distributions["columns"]
    }
    comparison = validation.comparison
    if comparison and comparison.now and comparison.reference.distributions:
        old = {entry["name"]: entry for entry in comparison.reference.distributions["columns"]}
        for entry in comparison.now["columns"]:
            found[entry["name"]] = entry, old[entry["name"]]
    return found


def _row(
    name: str,
    kind: str,
    statistics: Mapping[str, Any],
    validation: Validation | None,
    entries: Mapping[str, tuple[_Entry, _Entry | None]],
) -> Row:
    column = statistics["features"][name]
    comparison = validation.comparison if validation else None
    cells = [figure(column[key]) for key in _FIGURES] if kind == NUMBER else [_words(column)]
    drifts = []
    if validation and validation.distributions:
        moved = [comparison.drift] if comparison else []
        known = (*moved, validation.test_drift)
        drifts = [drift_cell(by_name.get(name), validation.max_psi) for by_name in known]
    shape = column.get("histogram") if kind in (NUMBER, DATE) else None
    plot = _plot(*entries[name]) if name in entries and kind != TEXT else ""
    return Row(
        name,
        plot,
        small.bars(shape) if shape else "",
        cells,
        _gaps(name, column, comparison),
        drifts,
    )


def _plot(now: _Entry, before: _Entry | None) -> Markup:
    lines = {"b": _bars(now["counts"]["test"], now["kind"])}
    if before:
        lines["c"] = _bars(before["counts"]["train"], before["kind"])
    return small.compare(_bars(now["counts"]["train"], now["kind"]), lines)


def _bars(counts: Sequence[int], kind: str) -> list[int]:
    if kind != CATEGORY or len(counts) <= _MOST_BARS:
        return list(counts)
    return [*counts[: _MOST_BARS - 1], sum(counts[_MOST_BARS - 1 :])]


def _gaps(name: str, column: Mapping[str, Any], comparison: Comparison | None) -> str:
    gaps = column.get("missing", 0)
    text = f"{gaps:,}"
    if gaps:
        text += f" ({gaps / (gaps + column['count']):.1%})"
    if comparison and name in comparison.gaps:
        before, now = comparison.gaps[name]
        if abs(now - before) >= 0.005:
            text += f", was {before:.1%}"
    return text


def _words(column: Mapping[str, Any]) -> str:
    """Return the values of a column that is no number, as text."""
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
    """Return the formats, modes and sizes of pictures, as text."""
    kinds = {**column["formats"], **column["modes"]}
    sizes = ", ".join(f"{width} x {height} ({n:,})" for width, height, n in column["sizes"][:5])
    more = f" and {column['distinct_sizes'] - 5:,} more" if column["distinct_sizes"] > 5 else ""
    counts = ", ".join(f"{name} {count:,}" for name, count in kinds.items())
    return f"{counts}; width x height: {sizes}{more}"
