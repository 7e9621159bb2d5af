"""`kfp-tfjob schedule`: start runs on Kubeflow Pipelines at regular times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.common.formatting import counted

from .group import Group, refuse_misplaced_options
from .output import age, as_json, dry_run, proceed, show, show_json, show_table, without_asking
from .parameters import parameters_of, with_parameters
from .shared_options import (
    CONNECTION_OPTIONS,
    open_client,
    with_connection,
    with_experiment,
    with_pipeline,
)
from .submit import show_plan

if TYPE_CHECKING:
    from ..kubeflow.connection import Connection
    from ..kubeflow.schedules import Schedule


@click.group(cls=Group, invoke_without_command=True)
@refuse_misplaced_options(accepted=CONNECTION_OPTIONS)
@with_parameters(here=False)
@with_experiment
@with_connection
@click.option(
    "--schedule-name",
    default="",
    metavar="NAME",
    help="replaces a schedule with this name [default: the model's]",
)
@click.option(
    "--cron",
    default="",
    metavar="EXPRESSION",
    help="when to run: seconds, minutes, hours, day of month, month, day of week, for example"
    " '0 0 3 * * *' for 3 a.m. every day; or an interval such as '@every 6h'",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10),
    default=1,
    show_default=True,
    help="how many of its runs may run at the same time",
)
@with_pipeline
@without_asking
@dry_run
@as_json
@click.pass_context
def schedule(context: click.Context, connection: Connection, **arguments: Any) -> None:
    """Start runs on Kubeflow Pipelines at regular times.

    It takes the options of submit, and --cron. It checks them, shows the plan of a run that would
    start now, and asks for confirmation; with --dry-run, it stops there. Then it shows the schedule
    as Kubeflow Pipelines has stored it.

    The time zone of --cron is the back end's, by default UTC. {date} and {hour} in data_uri are
    those of the tick, in UTC.

    A schedule with the same name is replaced. If it has runs in flight, it is only paused, because
    deleting it would end them.
    """
    if context.invoked_subcommand:
        context.obj = connection
        return
    _create(connection, **arguments)


def _create(
    connection: Connection,
    schedule_name: str,
    cron: str,
    concurrency: int,
    pipeline: Path | None,
    service_account: str,
    yes: bool,
    dry_run: bool,
    json_: bool,
    **arguments: Any,
) -> None:
    from ..kubeflow.schedules import Trigger

    trigger = Trigger(cron)
    client = open_client(connection)
    package = client.package(pipeline or "")
    parameters = parameters_of(arguments, package.defaults, here=False)
    name = schedule_name or str(parameters.values["model_name"])
    plan = client.plan(parameters.values, package, parameters.sources)

    def show_schedule_plan() -> None:
        replaced = client.schedules(name)
        show_plan(plan, client.back_end.host, client.back_end.namespace)
        show(f"{'schedule:':<10} {name}: cron {cron}; {counted(concurrency, 'run')} at once")
        for old in replaced:
            show(f"note: it replaces {_label(old)}{_in_flight(old)}")

    if not proceed(plan, show_schedule_plan, yes, dry_run, json_):
        return
    created, paused = client.schedule(
        parameters.values, trigger, package, name, concurrency, service_account
    )
    if not json_:
        show("\nKubeflow Pipelines stored this schedule:")
    _show_schedule(created, json_)
    for old in () if json_ else paused:
        show(
            f"note: {_label(old)} is kept, paused{_in_flight(old)}, because deleting it now would"
            " end its runs"
        )


def _label(schedule: Schedule) -> str:
    return f"{schedule.name} ({schedule.schedule_id[:8]}, {schedule.when})"


def _in_flight(schedule: Schedule) -> str:
    """Return a clause with the runs of a schedule that are in flight; empty without any."""
    if not schedule.in_flight:
        return ""
    runs = ", ".join(f"{run.name} ({run.run_id[:8]})" for run in schedule.in_flight)
    return f", with {counted(len(schedule.in_flight), 'run')} in flight: {runs}"


def _with_connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a connection; they may also come before the subcommand's name."""

    @wraps(command)
    def connected(connection: Connection, **arguments: Any) -> Any:
        options = {name: option for name, option in asdict(connection).items() if option}
        merged = replace(click.get_current_context().obj, **options)
        return command(connection=merged, **arguments)

    return with_connection(connected)


@schedule.command("list")
@as_json
@_with_connection
def list_(connection: Connection, json_: bool) -> None:
    """List the schedules of this pipeline, the newest first."""
    schedules = open_client(connection).schedules()
    if json_:
        show_json(schedules)
        return
    rows = [
        (
            listed.schedule_id[:8],
            listed.name,
            listed.state,
            listed.when,
            listed.model,
            age(listed.created),
            len(listed.in_flight),
        )
        for listed in schedules
    ]
    show_table(("id", "name", "state", "when", "model", "age", "in flight"), rows)


@schedule.command("delete")
@click.argument("name")
@_with_connection
def delete(connection: Connection, name: str) -> None:
    """Delete a schedule; one with runs in flight is only paused."""
    show(f"deleted {_label(open_client(connection).delete_schedule(name))}")


def _show_schedule(schedule: Schedule, json_: bool) -> None:
    if json_:
        show_json(schedule)
        return
    rows = {
        "schedule": f"{schedule.name} ({schedule.schedule_id}), {schedule.state}",
        "when": schedule.when,
        "at once": str(schedule.at_once),
        "data": str(schedule.parameters.get("data_uri", "")),
        "output": str(schedule.parameters.get("output_uri", "")),
        "UI": schedule.page,
    }
    for name, text in rows.items():
        if text:
            show(f"{name + ':':<10} {text}")
    for run in schedule.in_flight:
        show(f"in flight: {run.name} ({run.run_id[:8]}), {run.state}")
