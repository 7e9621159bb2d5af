"""`kfp-tfjob runs`: the runs of a back end, and what they leave in the store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_client
from kfp_tfjob.pipelines.commands.group import Group
from kfp_tfjob.pipelines.commands.output import age, as_json, show, show_json, show_table
from kfp_tfjob.pipelines.commands.store import Models, with_models
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import counted, minutes, sized

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.registry.prune_runs import Old

_UNFINISHED = 90  # days that a run without a record of its end stays: it may wait in a queue


@click.group(cls=Group, invoke_without_command=True)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="how many"
)
@click.option("--model", default="", metavar="NAME", help="only runs of this model")
@with_client
@as_json
@click.pass_context
def runs(context: click.Context, client: Client, limit: int, model: str, json_: bool) -> None:
    """List the newest runs of this pipeline on Kubeflow Pipelines.

    The verdict is published, blessed, not blessed, lost the race, unchanged (there was nothing to
    train), not evaluated (train_options.evaluate is false), or the reason for a failure. It is read
    from the store, and empty without access to it.
    """
    if context.invoked_subcommand:
        return
    troubles: list[str] = []
    found = client.runs(limit, model, tell=troubles.append)
    if json_:
        show_json(found)
        return
    rows = [
        (
            run.run_id[:8],
            run.name,
            run.state + (f" in {run.current.name}" if run.current and not run.is_over else ""),
            run.model,
            age(run.created),
            minutes(run.seconds),
            run.verdict,
        )
        for run in found
    ]
    show_table(("run", "name", "state", "model", "age", "duration", "verdict"), rows)
    for trouble in troubles[:1]:
        show(f"note: verdicts are missing, because the store cannot be read from here: {trouble}")
    if not found:
        show(f"There is no run{' of this model' if model else ''} yet.")


@dataclass(frozen=True)
class PrunedRuns:
    """What `runs prune` deleted, or would delete.

    Attributes:
        applied: Whether it was deleted.
        deleted: The runs and datasets.
        kept: Why other old ones stay.
    """

    applied: bool
    deleted: tuple[Old, ...]
    kept: dict[str, str]


def _days(_context: click.Context, _option: click.Parameter, given: str) -> int:
    days = re.fullmatch(r"([1-9][0-9]{0,4})d?", given)
    if not days:
        raise ConfigurationError(
            Problem(
                "--older-than is not a number of days",
                received=given,
                expected="days, 1 or more",
                fix="for instance --older-than 90d",
            )
        )
    return int(days[1])


@runs.command()
@click.option(
    "--older-than",
    "days",
    required=True,
    callback=_days,
    metavar="DAYS",
    help="how long ago a run or dataset was last written to, for instance 90d",
)
@click.option("--apply/--dry-run", "really", default=False, help="delete them [default: --dry-run]")
@with_models
@as_json
def prune(place: Models, days: int, really: bool, json_: bool) -> None:
    """Delete old runs and datasets from the store; without --apply, only list them.

    The verdict of a run, all models, the datasets of their versions and of younger runs, and runs
    of the last 90 days that have not ended are kept. If the command is killed, run it again.
    """
    from kfp_tfjob.registry import prune_runs

    now = datetime.now(UTC)
    limits = [now - timedelta(days=it) for it in (days, max(days, _UNFINISHED))]
    planned = prune_runs.plan(place.store, place.layout, *limits)
    found = planned.candidates
    if really:
        found = tuple(prune_runs.execute(place.store, place.layout, *limits))
    if json_:
        show_json(PrunedRuns(really, found, planned.kept))
        return
    for it in found:
        done = "deleted" if really else "would delete"
        what = f"{counted(it.files, 'object')}, {sized(it.size)}"
        show(f"{done} {it.what} {it.name}: written {it.written:%Y-%m-%d}; {what}")
    for name, why in planned.kept.items():
        show(f"stays: {name}: {why}")
    show(f"{'deleted' if really else 'would free'}: {sized(sum(it.size for it in found))}")
    if found and not really:
        show("nothing was deleted; add --apply to delete")
