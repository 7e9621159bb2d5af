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

from kfp_tfjob.options.contract import Contract
from kfp_tfjob.pipelines.commands.output import show, show_table
from kfp_tfjob.pipelines.commands.store import with_models
from kfp_tfjob.storage.errors import DataError, Problem, StepError

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.commands.store import Models
    from kfp_tfjob.serving.request_counts import ColumnDrift, Monitored

log = logging.getLogger(__name__)

_MOST_NAMED = 20  # columns without drift, for people


class _Limit(click.FloatRange):
    """A finite number; click takes NaN and infinity for numbers, which nothing would exceed."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return the number."""
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{found} is not a limit", param, ctx)


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
    from kfp_tfjob.serving.monitor import monitor as look

    limits = Contract(
        max_psi=max_psi, max_unseen=max_unseen, max_gap_rise=max_gap_rise, ignore=ignore
    )
    try:
        found = look(place.store, place.layout, model, datetime.now(UTC), days, limits)
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
        click.echo(json.dumps(asdict(found), indent=1, ensure_ascii=False))
    else:
        _show(found)
    sys.exit(1 if found.moved else 0)


def _show(found: Monitored) -> None:
    show(
        f"{found.model_name}, version {found.version} of run {found.run_id}:"
        f" {found.rows:,} of {found.requested:,} requested rows,"
        f" {found.since} to {found.until}"
    )
    still = [column for column in found.columns if not column.beyond]
    shown = [*found.moved, *still[:_MOST_NAMED]]
    head = ("", "PSI", "missing before", "missing now", "not in train", "")
    rows = [_row(column) for column in shown]
    show_table(head, rows)
    if others := len(still) - _MOST_NAMED:
        show(f"{others:,} more columns have not moved.") if others > 0 else None
    for text in _notes(found):
        show(text)


def _row(column: ColumnDrift) -> tuple[str, ...]:
    unseen = f"{column.unseen:.1%}" if column.examples else ""
    return (
        column.name,
        f"{column.psi:.3f}",
        f"{column.gaps_before:.1%}",
        f"{column.gaps_now:.1%}",
        unseen,
        _word(column),
    )


def _word(column: ColumnDrift) -> str:
    if column.beyond:
        examples = f" such as {', '.join(map(repr, column.examples))}"
        words = {"psi": "MOVED", "gaps": "MORE MISSING", "unseen": "NEW VALUES" + examples}
        return ", ".join(words[key] for key in column.beyond)
    return "chance" if column.chance else ""


def _notes(found: Monitored) -> Iterator[str]:
    if found.left_out:
        yield f"The server does not store {', '.join(found.left_out)}."
    if found.bad_rows:
        yield f"{found.bad_rows:,} rows have values whose type differs from their column's."
    if found.unreadable:
        yield f"{len(found.unreadable):,} samples were skipped. {found.unreadable[0]}"
    if not found.judged:
        yield "There are too few rows to report drift."
    elif not found.moved:
        yield "The requests resemble the training data."
    else:
        names = ", ".join(column.name for column in found.moved)
        yield f"Moved: {names}. Check their source; if it is correct, train on newer data."
