"""`kfp-tfjob models rollback | promote | prune | sync`: what changes the models."""

from __future__ import annotations

import getpass
import sys
from typing import Any

import click

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import counted, sized

from .deletion_progress import DeletionProgress
from .output import dry_run, proceed, show, without_asking
from .store import Models, with_models

_reason = click.option(
    "--reason", required=True, metavar="TEXT", help="why, for the model's history"
)


@click.command()
@click.argument("model")
@click.option(
    "--to",
    "version",
    type=click.IntRange(min=1),
    metavar="VERSION",
    help="the earlier champion to restore [default: the previous one]",
)
@_reason
@with_models
@without_asking
@dry_run
def rollback(
    place: Models,
    model: str,
    version: int | None,
    reason: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make an earlier champion the champion again.

    The version is verified before anything is written. Its files get the next number, because
    servers load the highest. If a run publishes at the same time, only one of the two succeeds;
    exit code 6 means that the run did. If the command is killed, repeat it with --to VERSION or run
    `models sync`. Without --to, it might go one champion further back than you intended.
    """
    from kfp_tfjob.registry import rollback as engine
    from kfp_tfjob.registry import view

    view.require(place.store, place.layout, model)
    person, stripped_reason = _user_name(), _check_reason(reason)
    plan = engine.plan(place.store, place.layout, model, version or 0)
    current, target = plan.now, plan.back_to

    def show_plan() -> None:
        if plan.is_done:
            show(f"version {current.version} is already the champion of {model}")
        else:
            show(
                f"{model}: roll back from version {current.version} of run {current.run_id}"
                f" to version {target.version} of run {target.run_id}"
            )

    if not proceed(plan, show_plan, yes or plan.is_done, dry_run):
        return
    champion = engine.execute(place.store, place.layout, plan, person, stripped_reason)
    _show_champion(place, model, champion)


@click.command()
@click.argument("model")
@click.option("--run", "run_id", required=True, metavar="ID", help="the run that trained it")
@click.option("--task", default="", metavar="KEY", help="the task_key, in your own pipeline")
@_reason
@with_models
@without_asking
@dry_run
def promote(
    place: Models,
    model: str,
    run_id: str,
    task: str,
    reason: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Make a run's model the champion, regardless of its verdict.

    The run must have been evaluated; its verdict is shown first. The history records who overruled
    it and why.
    """
    from kfp_tfjob.components.publish import manual_promotion
    from kfp_tfjob.components.step import Step
    from kfp_tfjob.registry.run_folder import find, full_id
    from kfp_tfjob.registry.runs import run_ids

    person, stripped_reason = _user_name(), _check_reason(reason)
    _, existing_ids = run_ids(place.store, place.layout)
    run_id = full_id(run_id, existing_ids)
    folder = find(place.store, place.layout, run_id)
    step = Step("publish", run_id, place.layout, place.store, task, folder)
    plan = manual_promotion.plan(step, model)

    def show_plan() -> None:
        show(f"{model}: the version of run {run_id} becomes the champion")
        show(f"verdict: {'blessed' if plan.blessed else 'not blessed'}: {plan.reasons}")
        show(f"champion now: {plan.now or 'none'}")

    if not proceed(plan, show_plan, yes, dry_run):
        return
    champion = manual_promotion.execute(step, plan, person, stripped_reason)
    _show_champion(place, model, champion)


@click.command()
@click.argument("model")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="how many earlier champions to keep for a rollback",
)
@click.option("--apply/--dry-run", "really", default=False, help="delete them [default: --dry-run]")
@with_models
def prune(place: Models, model: str, keep: int, really: bool) -> None:
    """Delete versions that are no longer needed; without --apply, only list them.

    It keeps the champion, the N champions before it, all records, and versions less than 24 hours
    old, because their runs may be in flight. If the command is killed, run it again.
    """
    from kfp_tfjob.registry import prune_versions as engine
    from kfp_tfjob.registry import view

    view.require(place.store, place.layout, model)
    person = _user_name() if really else ""
    with DeletionProgress("prune") as progress:
        progress.note("looking for versions that are no longer needed")
        plan = engine.plan(place.store, place.layout, model, keep)
        # Each candidate, and why it was not deleted after all; empty for a deleted one.
        outcomes = [(candidate, "") for candidate in plan.candidates]
        if really:
            deletions = engine.execute(place.store, place.layout, plan, keep, person)
            outcomes = list(progress.counted(deletions, plan.candidates))
    done = "deleted" if really else "would delete"
    for candidate, obstacle in outcomes:
        if obstacle:
            continue
        name = f"the folder for servers {candidate.serving}"
        if candidate.version:
            name = f"version {candidate.version}"
        size = f"{counted(candidate.files, 'object')}, {sized(candidate.size)}"
        show(f"{done} {name}: {candidate.why}; {size}")
    for number, reason in sorted(plan.kept.items(), reverse=True):
        show(f"stays: version {number} {reason}")
    for _, obstacle in outcomes:
        if obstacle:
            show(f"note: {obstacle}")
    if plan.candidates and not really:
        show("nothing was deleted; add --apply to delete")


@click.command()
@click.argument("model", required=False)
@with_models
def sync(place: Models, model: str | None) -> None:
    """Finish an interrupted publish, and bring other registries up to date.

    It completes the folder that servers read, for one model or for all. MLflow is enabled if
    MLFLOW_TRACKING_URI is set, the Kubeflow Model Registry if MODEL_REGISTRY_URL is. Exit code 1
    means that one of them is not up to date.
    """
    from kfp_tfjob.registry import mirror, view
    from kfp_tfjob.registry.servable import publish_newest

    if model:
        view.require(place.store, place.layout, model)
    outcomes, folders, errors = [], {}, []
    for name in [model] if model else view.names(place.store, place.layout):
        try:
            folder = publish_newest(place.store, place.layout, name)
        except DataError as error:
            errors.append(error)  # raised at the end, so that the other models are completed
            continue
        folders[name] = str(folder or "")
        outcomes += mirror.sync(place.store, place.layout, name, mirror.PERSON_SECONDS)
    for name, folder in folders.items():
        show(f"{name}: servers read {folder}" if folder else f"{name} has no champion yet")
    for outcome in outcomes:
        show(f"{outcome.model}: {outcome.mirror} at {outcome.server}: {outcome.message}")
    if errors:
        raise DataError(*(problem for error in errors for problem in error.problems))
    if not all(outcome.done for outcome in outcomes):
        sys.exit(1)


def _show_champion(place: Models, model: str, champion: Any) -> None:
    """Bring other registries up to date, and print the new champion and the outcome."""
    from kfp_tfjob.registry import mirror

    outcomes = mirror.sync(place.store, place.layout, model)
    base = place.layout.model(model).servable(champion.served_as)
    show(f"the champion of {model} is version {champion.version} of run {champion.run_id}")
    show(f"servers read {base}")
    for outcome in outcomes:
        show(f"{outcome.mirror} at {outcome.server}: {outcome.message}")


def _user_name() -> str:
    """Return the name of this machine's user, for the history of the champions."""
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        raise ConfigurationError(
            Problem(
                "your user name is unknown",
                received=str(error),
                expected="a name for the history of the champions",
                fix="set the environment variable LOGNAME to your name",
            )
        ) from error


def _check_reason(reason: str) -> str:
    """Return a reason without surrounding blanks; an empty one is an error."""
    if not reason.strip():
        raise ConfigurationError(
            Problem(
                "--reason is empty",
                expected="why the champion changes, for the history",
                fix="write a reason",
            )
        )
    return reason.strip()
