"""`kfp-tfjob runs`: the runs of a back end or a home, and `runs prune`, which deletes old ones."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from kfp_tfjob.common.formatting import counted, minutes, sized

from .deletion_progress import DeletionProgress
from .group import Group, refuse_misplaced_options
from .output import age, as_json, show, show_json, show_table
from .shared_options import with_runs
from .store import Models, with_models

if TYPE_CHECKING:
    from ..kubeflow.client import Client
    from ..local.runs import HomeRuns


Row = tuple[str, ...]

_DAYS = re.compile("([1-9][0-9]{0,4})d")
_LEAST_DAYS = 7  # the steps before and after training may write nothing for this long


@click.group(cls=Group, invoke_without_command=True)
@refuse_misplaced_options()
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="how many"
)
@click.option("--model", default="", metavar="NAME", help="only runs of this model")
@with_runs
@as_json
@click.pass_context
def runs(
    context: click.Context, client: Client | HomeRuns, limit: int, model: str, json_: bool
) -> None:
    """List the newest runs of this pipeline, on Kubeflow Pipelines or on this machine.

    These are the local runs with --home, or if there are any and no back end is configured.

    The verdict is published, blessed, not blessed, lost the race, unchanged (there was nothing to
    train), not evaluated (it has no data, or train_options.evaluate is false), or the reason for a
    failure. It is read from the store, and empty without access to it.
    """
    if context.invoked_subcommand:
        return
    troubles: list[str] = []
    newest = client.runs(limit, model, tell=troubles.append)
    if json_:
        show_json(newest)
        return
    rows = [
        (
            run.short_id,
            run.name,
            run.state + (f" in {run.current.name}" if run.current and not run.is_over else ""),
            run.model,
            age(run.created),
            minutes(run.seconds),
            run.verdict,
        )
        for run in newest
    ]
    head = ("run", "name", "state", "model", "age", "duration", "verdict")
    if newest and all(run.is_local for run in newest):  # their names are their ids
        head, rows = _without_name(head), map(_without_name, rows)
    show_table(head, rows)
    for trouble in troubles[:1]:
        show(f"note: some verdicts are missing, because they cannot be read from here: {trouble}")
    if not newest:
        show(f"There is no run{' of this model' if model else ''} yet.")


def _without_name(cells: Row) -> Row:
    return (*cells[:1], *cells[2:])


@runs.command()
@click.option(
    "--older-than",
    default="90d",
    show_default=True,
    metavar="DAYS",
    help=f"minimum time since the last write or use, {_LEAST_DAYS}d or more",
)
@click.option("--apply/--dry-run", "really", default=False, help="delete them [default: --dry-run]")
@with_models
def prune(place: Models, older_than: str, really: bool) -> None:
    """Delete old checkpoints, runs and datasets; without --apply, only list them.

    It keeps everything that versions, champions, when_unchanged or unfinished runs may still need.
    If the command is killed, run it again.
    """
    from kfp_tfjob.registry import prune_runs as engine

    from ..local.run import only_run

    days = _DAYS.fullmatch(older_than)
    if not days or int(days[1]) < _LEAST_DAYS:
        raise click.BadParameter(
            f"{older_than!r}; expected a number of days such as 90d, at least {_LEAST_DAYS}d"
        )
    with ExitStack() as stack:
        if place.home.folder.is_dir():
            stack.enter_context(only_run(place.home))  # a local run may be silent for long
        progress = stack.enter_context(DeletionProgress("prune"))
        progress.note("looking for objects that are no longer needed")
        plan = engine.plan(place.store, place.layout, int(days[1]) * 86400)
        # Each candidate, and why it was not deleted after all; empty for a deleted one.
        outcomes = [(candidate, "") for candidate in plan]
        if really:
            outcomes = []
            deletions = engine.execute(place.store, place.layout, plan)
            for candidate, obstacle in progress.counted(deletions, plan):
                outcomes.append((candidate, obstacle))
                if candidate.kind == "run" and not obstacle:
                    shutil.rmtree(place.home.run(candidate.name), ignore_errors=True)
    deleted = [candidate for candidate, obstacle in outcomes if not obstacle]
    done = "deleted" if really else "would delete"
    for candidate in deleted:
        kind = candidate.kind
        if kind not in ("run", "dataset"):
            kind = f"{kind} of run"
        size = f"{counted(candidate.files, 'object')}, {sized(candidate.size)}"
        show(f"{done} {kind} {candidate.name}: {candidate.why}; {size}")
    for candidate, obstacle in outcomes:
        if obstacle:
            show(f"note: {candidate.kind} {candidate.name} stays: {obstacle}")
    files = sum(candidate.files for candidate in deleted)
    total = sum(candidate.size for candidate in deleted)
    show(f"{done} {counted(files, 'object')}, {sized(total)}")
    if deleted and not really:
        show("nothing was deleted; add --apply to delete")
