"""Renders a dataset and the verdict on it as one HTML page without external references.

Called by prepare_data's `component.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kfp_tfjob.common.errors import DataError, Example, Problem, first
from kfp_tfjob.common.escaping import short
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnStatistics, ColumnType
from kfp_tfjob.pages import sparklines
from kfp_tfjob.pages.rebinning import Rebinning
from kfp_tfjob.pages.template import render as fill

from ..step import Step
from .contracts import consequence
from .data_validation import Comparison, Validation
from .dataset import Prepared
from .distributions import ColumnRows, Drift
from .leaking_columns import Suspicious

MOST_COLUMNS = 200
_MOST_BARS = 24  # the rest of the values is one bar
_USUAL = 0.1  # PSI


@dataclass(frozen=True)
class Row:
    """A column in its table.

    Attributes:
        plot: Its rows by value or by bin: train as bars, test and the champion's data as lines.
        cells: The figures of a number, or the values as text.
        gaps: The missing values in train.
        drift: Style and text of the drift from the champion's data.
    """

    name: str
    plot: Markup | str
    cells: list[str]
    gaps: str
    drift: tuple[str, str]


@dataclass(frozen=True)
class Section:
    """The columns of one kind: `heads` are the names of `cells`, `total` counts all of them."""

    title: str
    heads: tuple[str, ...]
    has_plot: bool
    rows: list[Row]
    total: int


def sections(statistics: StatisticsDocument, validation: Validation) -> list[Section]:
    """Return the tables of columns; together they have at most MOST_COLUMNS rows."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in TYPES}
    for name, column in statistics.features.items():
        by_kind[column.kind].append(name)
    remaining_rows, shown_sections = MOST_COLUMNS, []
    entries = _entries(validation)
    for kind, names in by_kind.items():
        if names:
            column_type = TYPES[kind]
            rows = [
                _row(name, column_type, statistics, validation, entries)
                for name in names[:remaining_rows]
            ]
            remaining_rows -= len(rows)
            heads = column_type.figures or ("values",)
            has_plot = any(row.plot for row in rows)
            title = column_type.nouns[1].capitalize()
            shown_sections.append(Section(title, heads, has_plot, rows, len(names)))
    return shown_sections


def figure(value: float) -> str:
    """Return a number as the tables show it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def drift_cell(item: Drift | None, largest: float | None) -> tuple[str, str]:
    """Return the style and the text of a PSI, by the largest one that is allowed, if any."""
    if item is None:
        return "", ""
    is_beyond_limit = largest is not None and item.psi > largest
    style = "bad" if is_beyond_limit else "warning" if item.psi > _USUAL else ""
    return "" if item.is_chance else style, f"{item.psi:.3f}"


_Entries = Mapping[str, tuple[ColumnRows, ColumnRows | None]]


def _entries(validation: Validation) -> _Entries:
    """Return each column's counts in this data and in the champion's, over the same bins."""
    if not validation.distributions:
        return {}
    entries: dict[str, tuple[ColumnRows, ColumnRows | None]] = {
        column.name: (column, None) for column in validation.distributions.columns
    }
    comparison = validation.comparison
    if comparison and comparison.now and comparison.reference.distributions:
        old = comparison.reference.distributions.by_name
        entries |= {column.name: (column, old[column.name]) for column in comparison.now.columns}
    return entries


def _row(
    name: str,
    of: type[ColumnType],
    statistics: StatisticsDocument,
    validation: Validation,
    entries: _Entries,
) -> Row:
    column = statistics.features[name]
    comparison = validation.comparison
    cells = [figure(getattr(column, key)) for key in of.figures]
    cells = cells or [column.words if column.count else "none"]
    moved = comparison.drift.get(name) if comparison else None
    counted_rows = entries[name] if name in entries and of.drift_bins else None
    return Row(
        name,
        _plot(column, counted_rows, _ends(name, column, validation)),
        cells,
        _gaps_cell(name, column, comparison),
        drift_cell(moved, validation.max_psi),
    )


def _ends(
    name: str, column: ColumnStatistics, validation: Validation
) -> tuple[float, float] | None:
    """Return the ends of a column's histogram as numbers; None if they are unknown."""
    low, high = getattr(column, "min", None), getattr(column, "max", None)
    if isinstance(low, int | float) and isinstance(high, int | float):
        return float(low), float(high)
    own = validation.distributions.by_name.get(name) if validation.distributions else None
    # A date: its bins are in the unit of the rows, and statistics.json has it as a string.
    return (float(own.edges[0]), float(own.edges[-1])) if own and own.edges else None


def _plot(
    column: ColumnStatistics,
    counted_rows: tuple[ColumnRows, ColumnRows | None] | None,
    ends: tuple[float, float] | None,
) -> Markup | str:
    """Draw a column's rows: train as bars, test and the champion's data as lines.

    Args:
        column: Its statistics, with a histogram if it is a number or a date.
        counted_rows: Its rows by bin, and the rows of the champion's data; None without bins.
        ends: The ends of its histogram.
    """
    histogram = getattr(column, "histogram", None)
    if counted_rows is None:
        return sparklines.bars(histogram) if histogram else ""
    now, before = counted_rows
    lines = {"b": now.counts["test"]} | ({"c": before.counts["train"]} if before else {})
    if not histogram:
        bins = {style: _bars(rows) for style, rows in lines.items()}
        return sparklines.compare(_bars(now.counts["train"]), bins)
    if not now.edges or ends is None:
        return sparklines.bars(histogram)
    rebinning = Rebinning(now.edges, now.counts["train"], histogram, ends)
    by_bar = {style: rebinning.by_bar(rows) for style, rows in lines.items()}
    return sparklines.compare(histogram, by_bar)


def _bars(counts: Sequence[int]) -> list[int]:
    if len(counts) <= _MOST_BARS:
        return list(counts)
    return [*counts[: _MOST_BARS - 1], sum(counts[_MOST_BARS - 1 :])]


def _gaps_cell(name: str, column: ColumnStatistics, comparison: Comparison | None) -> str:
    gaps = column.missing
    text = f"{gaps:,}"
    if gaps:
        text += f" ({gaps / (gaps + column.count):.1%})"
    if comparison and name in comparison.gaps:
        before, now = comparison.gaps[name]
        if abs(now - before) >= 0.005:
            text += f", was {before:.1%}"
    return text


MOST_LISTED = 100  # lines of a table
_MOST_PROBLEMS = 20


def page_of(step: Step, prepared: Prepared, validation: Validation) -> str:
    """Return the report, unless the contract with the champion's data ends the run.

    Then it is stored, because Kubeflow Pipelines keeps nothing of a failed step.

    Raises:
        DataError: All that data_options.contract does not allow, and where the report is.
    """
    page = render(prepared.schema, prepared.statistics, prepared.reused, validation)
    if validation.errors:
        address = step.run.data_report
        step.store.write(address, page.encode(), "text/html")
        raise DataError(*validation.errors, Example(f"data_report is {address}"))
    return page


def render(
    schema: Schema,
    statistics: StatisticsDocument,
    reused: bool,
    validation: Validation,
) -> str:
    """Return the report: less than 1 MB, with at most 200 columns and 100 classes."""
    comparison, suspicious = validation.comparison, validation.suspicious
    counts = statistics.label.counts
    problems = [*comparison.changes, *comparison.beyond] if comparison else []
    dropped = list(_left_out(schema, statistics))
    return fill(
        "components/prepare_data/report.html.j2",
        title=f"{schema.task.capitalize()} of {short(schema.label.name, 100)}",
        schema=schema,
        statistics=statistics,
        reused=reused,
        validation=validation,
        comparison=comparison,
        verdict=list(_verdict(statistics, problems, suspicious, dropped)),
        consequence=consequence(comparison.reference).parts
        if comparison and comparison.changes
        else None,
        problems=[problem.parts for problem in first(problems, _MOST_PROBLEMS, "differences")],
        suspicious=suspicious[:MOST_LISTED],
        all_suspicious=len(suspicious),
        rows=sum(schema.rows.values()),
        in_train=statistics.also_in_train,
        largest=max(counts["train"].values()) if counts else None,
        label_drift=drift_cell(comparison and comparison.label, validation.max_psi),
        sections=sections(statistics, validation),
        dropped=dropped,
        most=MOST_LISTED,
        number=figure,
        counted=counted,
        percent="{:.1%}".format,
        sentence=_sentence,
        bars=sparklines.bars,
        bar=sparklines.bar,
    )


def _sentence(text: str) -> str:
    """Return a part of a message with a capital letter."""
    return text[:1].upper() + text[1:]


def _verdict(
    statistics: StatisticsDocument,
    problems: list[Problem],
    suspicious: list[Suspicious],
    dropped: list[tuple[str, str]],
) -> Iterator[tuple[str, str]]:
    """Yield badges: the class of the style, and the words; the most urgent first."""
    badges = (
        ("bad", len(problems), "difference", " from the champion's data"),
        ("bad", len(suspicious), "suspicious column", ""),
        ("warning", len(statistics.warnings), "warning", ""),
        ("warning", statistics.bad_rows.dropped, "bad row", " dropped"),
        ("note", len(dropped), "item", " dropped"),
    )
    urgent = False
    for style, count, noun, ending in badges:
        if count:
            urgent = urgent or style != "note"
            yield style, counted(count, noun) + ending
    if not urgent:
        yield "good", "nothing else stands out" if dropped else "nothing stands out"


def _left_out(schema: Schema, statistics: StatisticsDocument) -> Iterator[tuple[str, str]]:
    """Yield what the model does not get, and why."""
    for item in schema.left_out:
        yield f"column {item.name}", item.reason
    for name, rows in (statistics.rows_left_out or {}).items():
        yield (
            f"{rows:,} rows",
            f"a missing value in {name}, and the rule drop in data_options.missing",
        )
    for rule, rows in statistics.bad_rows.rules.items():
        yield f"{rows:,} bad rows", rule
