"""`kfp-tfjob monitor`: requests compared with the data that the model was trained on."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.common.errors import DataError, Problem, StepError
from kfp_tfjob.options.data_contract import Contract

from .output import show, show_table
from .store import with_models

if TYPE_CHECKING:
    from kfp_tfjob.serving.request_counts import ColumnDrift, Monitored

    from .store import Models

log = logging.getLogger(__name__)

_MOST_NAMED = 20  # columns without drift in the table, which should fit on a screen


class _Limit(click.FloatRange):
    """A finite number; click accepts NaN and infinity too, which no value would exceed."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number."""
        limit = super().convert(value, param, ctx)
        return limit if math.isfinite(limit) else self.fail("must be a finite number", param, ctx)


_DEFAULTS = Contract()


@click.command()
@click.argument("model")
@with_models
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=7.0,
    show_default=True,
    help="compare the requests from this many days",
)
@click.option(
    "--max-psi",
    type=_Limit(min=0),
    default=_DEFAULTS.max_psi,
    show_default=True,
    help="largest population stability index of a column; dates have no limit",
)
@click.option(
    "--max-unseen",
    type=_Limit(min=0, max=1),
    default=_DEFAULTS.max_unseen,
    show_default=True,
    metavar="SHARE",
    help="largest share of requests with a category that is not in the training data",
)
@click.option(
    "--max-gap-rise",
    type=_Limit(min=0, max=1),
    default=_DEFAULTS.max_gap_rise,
    show_default=True,
    metavar="SHARE",
    help="largest allowed rise in a column's share of missing values",
)
@click.option(
    "--ignore", multiple=True, metavar="COLUMN", help="a column without limits; may be repeated"
)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def monitor(
    model: str,
    place: Models,
    days: float,
    max_psi: float,
    max_unseen: float,
    max_gap_rise: float,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare MODEL's requests with its training data.

    The requests are those that `kfp-tfjob serve` has sampled. A column has moved if it exceeds a
    limit by more than chance could explain.

    Exit codes: 0 nothing has moved, or there are too few rows to tell; 1 something has moved; 2 an
    option is wrong; 3 nothing can be compared.
    """
    from kfp_tfjob.serving.monitor import monitor as compare

    limits = Contract(
        max_psi=max_psi, max_unseen=max_unseen, max_gap_rise=max_gap_rise, ignore=ignore
    )
    try:
        result = compare(place.store, place.layout, model, datetime.now(UTC), days, limits)
    except (StepError, click.ClickException):
        raise
    except Exception as error:  # Python would end with 1, which means that something has moved
        log.exception("kfp-tfjob monitor failed")
        raise DataError(
            Problem(
                "a bug in kfp-tfjob monitor, not in the requests",
                received=f"{type(error).__name__}: {error}",
                fix="report it with the lines above",
            )
        ) from error
    if as_json:
        click.echo(json.dumps(asdict(result), indent=1, ensure_ascii=False))
    else:
        _show(result)
    sys.exit(1 if result.moved else 0)


def _show(result: Monitored) -> None:
    show(
        f"{result.model_name}, version {result.version} of run {result.run_id}:"
        f" {result.rows:,} of {result.requested:,} requested rows,"
        f" {result.since} to {result.until}"
    )
    unmoved = [column for column in result.columns if not column.beyond]
    head = ("", "PSI", "missing before", "missing now", "not in train", "")
    rows = [_row(column) for column in (*result.moved, *unmoved[:_MOST_NAMED])]
    show_table(head, rows)
    omitted = len(unmoved) - _MOST_NAMED
    if omitted > 0:
        show(f"{omitted:,} more columns have not moved.")
    for sentence in _notes(result):
        show(sentence)


def _row(column: ColumnDrift) -> tuple[str, ...]:
    unseen = f"{column.unseen:.1%}" if column.examples else ""
    return (
        column.name,
        f"{column.psi:.3f}",
        f"{column.gaps_before:.1%}",
        f"{column.gaps_now:.1%}",
        unseen,
        _drift_words(column),
    )


def _drift_words(column: ColumnDrift) -> str:
    """Return the limits that a column exceeds, or `chance` if chance alone explains the excess."""
    if column.beyond:
        examples = f" such as {', '.join(map(repr, column.examples))}"
        words = {"psi": "MOVED", "gaps": "MORE MISSING", "unseen": "NEW VALUES" + examples}
        return ", ".join(words[key] for key in column.beyond)
    return "chance" if column.chance else ""


def _notes(result: Monitored) -> Iterator[str]:
    if result.left_out:
        yield f"The server does not store {', '.join(result.left_out)}."
    if result.bad_rows:
        yield f"{result.bad_rows:,} rows have values whose type differs from their column's."
    if result.unreadable:
        yield f"{len(result.unreadable):,} samples were skipped. {result.unreadable[0]}"
    if not result.judged:
        yield "There are too few rows to report drift."
    elif not result.moved:
        yield "The requests resemble the training data."
    else:
        names = ", ".join(column.name for column in result.moved)
        yield f"Moved: {names}. Check their source; if it is correct, train on newer data."
