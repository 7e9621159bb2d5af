"""Prepares the rows of the tables of columns in the report, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kfp_tfjob.components.prepare_data.data_validation import Comparison, Validation
from kfp_tfjob.components.prepare_data.drift import Drift
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.pages import small

MOST_COLUMNS = 200
_MOST_BARS = 24  # the rest of the values is one bar
_USUAL = 0.1  # PSI


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
    by_kind: dict[str, list[str]] = {kind: [] for kind in TYPES}
    for name, column in statistics["features"].items():
        by_kind[column.get("kind", Number.kind)].append(name)
    left, found = MOST_COLUMNS, []
    entries = _entries(validation)
    for kind, names in by_kind.items():
        if names:
            of = TYPES[kind]
            rows = [_row(name, of, statistics, validation, entries) for name in names[:left]]
            left -= len(rows)
            heads = of.figures or ("values",)
            has_shape = any("histogram" in statistics["features"][name] for name in names)
            has = any(row.plot for row in rows), has_shape
            found.append(Section(of.title, heads, *has, rows, len(names)))
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
    of: type[ColumnType],
    statistics: Mapping[str, Any],
    validation: Validation | None,
    entries: Mapping[str, tuple[_Entry, _Entry | None]],
) -> Row:
    column = statistics["features"][name]
    comparison = validation.comparison if validation else None
    cells = [figure(column[key]) for key in of.figures]
    cells = cells or [of.words(column) if column["count"] else "none"]
    drifts = []
    if validation and validation.distributions:
        moved = [comparison.drift] if comparison else []
        known = (*moved, validation.test_drift)
        drifts = [drift_cell(by_name.get(name), validation.max_psi) for by_name in known]
    shape = column.get("histogram")
    plot = _plot(*entries[name]) if name in entries and of.drift_bins else ""
    return Row(
        name,
        plot,
        small.bars(shape) if shape else "",
        cells,
        _gaps(name, column, comparison),
        drifts,
    )


def _plot(now: _Entry, before: _Entry | None) -> Markup:
    lines = {"b": _bars(now["counts"]["test"])}
    if before:
        lines["c"] = _bars(before["counts"]["train"])
    return small.compare(_bars(now["counts"]["train"]), lines)


def _bars(counts: Sequence[int]) -> list[int]:
    if len(counts) <= _MOST_BARS:
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
