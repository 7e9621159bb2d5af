"""Schedules, which the back end calls recurring runs: creates, replaces, lists and deletes them.

Deleting a schedule deletes the Workflows of its runs, and so their training. So a schedule with
runs in flight is only paused.

The back end computes the next tick, because its API does not report the time zone in which it reads
cron. It rejects an invalid field of an expression, but it accepts five fields and reads the first
as seconds. Called by the `schedule` commands and the Python client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parameters import RunParameters

from .connection import BackEnd, equals
from .errors import UnknownRunError
from .package import Package
from .runs import RUNNING, WAITING, Run, in_utc, is_ours, parameters_of, raw_runs, run_of


@dataclass(frozen=True)
class Trigger:
    """The times at which a schedule starts runs.

    Attributes:
        cron: Six fields, the seconds first, or one of the back end's words: `@daily`, `@every 6h`.

    Raises:
        ConfigurationError: cron does not have six fields.
    """

    cron: str

    def __post_init__(self) -> None:
        """Reject five fields, which the back end would accept with another meaning."""
        fields = self.cron.split()
        if not self.cron.startswith("@") and len(fields) != 6:
            raise ConfigurationError(
                Problem(
                    "--cron has the wrong number of fields",
                    received=f"{self.cron!r}, {counted(len(fields), 'field')}",
                    expected="seconds, minutes, hours, day of month, month, day of week",
                    fix=f"put the seconds first: '0 {' '.join(fields)}'"
                    if len(fields) == 5
                    else "write six fields; '0 0 3 * * *' is 3 a.m. every day",
                )
            )


@dataclass(frozen=True)
class Schedule:
    """A schedule of the back end.

    Attributes:
        schedule_id: Its id.
        name: Its name.
        state: `active` or `paused`.
        when: The cron expression, or the interval in words.
        at_once: The highest number of its runs in flight.
        model: The run parameter model_name.
        created: The time of its creation, as RFC 3339.
        in_flight: Its runs that have not ended.
        page: Its address in the UI.
        parameters: The run parameters, with secret-looking values masked.
    """

    schedule_id: str
    name: str
    state: str
    when: str
    at_once: int
    model: str
    created: str
    in_flight: tuple[Run, ...] = ()
    page: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def list_schedules(back_end: BackEnd, name: str = "") -> Iterator[Schedule]:
    """Yield the schedules of this pipeline, or of one name in it, the newest first."""
    runs = _runs_in_flight(back_end)
    for raw in _raw_schedules(back_end, name):
        yield _schedule_of(back_end, raw, runs[raw.recurring_run_id])


def find_schedule(back_end: BackEnd, identifier: str) -> Schedule:
    """Return a schedule by its name, its id, or a unique beginning of the id.

    If several schedules have the name, it is the active one.

    Raises:
        UnknownRunError: No schedule matches, or several do.
    """
    schedules = list(list_schedules(back_end))
    matches = [
        schedule for schedule in schedules if identifier in (schedule.name, schedule.schedule_id)
    ] or [
        schedule
        for schedule in schedules
        if len(identifier) > 3 and schedule.schedule_id.startswith(identifier)
    ]
    matches = [schedule for schedule in matches if schedule.state == "active"] or matches
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(
        f"{schedule.name} ({schedule.schedule_id[:8]}, {schedule.state})"
        for schedule in matches or schedules[:5]
    )
    raise UnknownRunError(
        Problem(
            "there are several such schedules" if matches else "there is no such schedule",
            received=identifier,
            expected=f"a name or an id: {names or 'there are none yet'}",
            fix="list them with `kfp-tfjob schedule list`, and give the id",
        )
    )


def create(
    back_end: BackEnd,
    package: Package,
    values: RunParameters,
    name: str,
    trigger: Trigger,
    at_once: int,
    account: str,
) -> tuple[Schedule, list[Schedule]]:
    """Create a schedule, and pause or delete schedules with the same name.

    The new schedule is created paused, the old one is paused, the new one starts, and then the old
    one is deleted if none of its runs is in flight. So the two never start runs at the same time,
    and no run ends. `Client.schedule` describes the arguments and the result.
    """
    models, api = back_end.sdk.api_models, back_end.sdk.recurring_runs
    old = list(_raw_schedules(back_end, name))
    body = models.V2beta1RecurringRun(
        display_name=name,
        experiment_id=back_end.experiment_id(),
        pipeline_spec=dict(package.spec),
        runtime_config=models.V2beta1RuntimeConfig(parameters=dict(values)),
        service_account=account or None,
        max_concurrency=str(at_once),
        no_catchup=True,  # of the ticks missed while it was paused, only the newest runs
        mode=models.RecurringRunMode.DISABLE,
        trigger=models.V2beta1Trigger(cron_schedule=models.V2beta1CronSchedule(cron=trigger.cron)),
    )
    new_id = back_end.once(
        "make the schedule", api.recurring_run_service_create_recurring_run, recurring_run=body
    ).recurring_run_id
    for raw in old:
        if _is_active(raw):
            _set_active(back_end, raw.recurring_run_id, active=False)
    _set_active(back_end, new_id, active=True)
    paused, runs = [], _runs_in_flight(back_end)
    for raw in old:
        if in_flight := runs[raw.recurring_run_id]:
            updated = _read(back_end, raw.recurring_run_id)
            paused.append(_schedule_of(back_end, updated, in_flight))
        else:
            _delete(back_end, raw.recurring_run_id)
    return _schedule_of(back_end, _read(back_end, new_id), runs[new_id]), paused


def delete(back_end: BackEnd, schedule: Schedule) -> None:
    """Delete a schedule, or only pause it if it has runs in flight.

    With it, Kubeflow Pipelines would delete the Workflows of these runs, which then never end in
    its API.

    Raises:
        ConfigurationError: It has runs in flight.
    """
    _set_active(back_end, schedule.schedule_id, active=False)  # so that no run starts meanwhile
    if runs := _runs_in_flight(back_end)[schedule.schedule_id]:
        raise ConfigurationError(
            Problem(
                f"{schedule.name} is only paused, because deleting it would end its runs in flight",
                received=", ".join(f"{run.name} ({run.run_id[:8]}, {run.state})" for run in runs),
                expected="no run in flight",
                fix="cancel them with `kfp-tfjob cancel`, or wait until they end; then delete it",
            )
        )
    _delete(back_end, schedule.schedule_id)


def _runs_in_flight(back_end: BackEnd) -> Mapping[str, list[Run]]:
    """Return the runs in flight by the id of their schedule; empty lists for other ids.

    All runs are read once, because the API cannot select them by schedule.
    """
    in_flight: dict[str, list[Run]] = defaultdict(list)
    for raw in raw_runs(back_end):
        if not raw.recurring_run_id:
            continue
        run = run_of(back_end, raw)
        if run.state in (*WAITING, *RUNNING):
            in_flight[raw.recurring_run_id].append(run)
    return in_flight


def _raw_schedules(back_end: BackEnd, name: str = "") -> Iterator[Any]:
    """Yield the API's objects of this pipeline's schedules, or of one name in it."""
    selection = {"filter": equals("name", name)} if name else {}
    for raw in back_end.pages(
        "list the schedules",
        back_end.sdk.recurring_runs.recurring_run_service_list_recurring_runs,
        "recurring_runs",
        sort_by="created_at desc",
        namespace=back_end.namespace,
        **selection,
    ):
        if is_ours(raw) and (not name or raw.display_name == name):
            yield raw


def _read(back_end: BackEnd, schedule_id: str) -> Any:
    method = back_end.sdk.recurring_runs.recurring_run_service_get_recurring_run
    return back_end.call("read the schedule", method, recurring_run_id=schedule_id)


def _delete(back_end: BackEnd, schedule_id: str) -> None:
    method = back_end.sdk.recurring_runs.recurring_run_service_delete_recurring_run
    back_end.call("delete the schedule", method, recurring_run_id=schedule_id)


def _set_active(back_end: BackEnd, schedule_id: str, active: bool) -> None:
    api = back_end.sdk.recurring_runs
    enable = api.recurring_run_service_enable_recurring_run
    disable = api.recurring_run_service_disable_recurring_run
    action = "resume the schedule" if active else "pause the schedule"
    back_end.call(action, enable if active else disable, recurring_run_id=schedule_id)


def _schedule_of(back_end: BackEnd, raw: Any, in_flight: list[Run]) -> Schedule:
    """Return the Schedule for an object of the API."""
    values, trigger = parameters_of(raw), raw.trigger
    timing = (trigger.cron_schedule or trigger.periodic_schedule) if trigger else None
    return Schedule(
        schedule_id=raw.recurring_run_id,
        name=raw.display_name or "",
        state="active" if _is_active(raw) else "paused",
        when=_timing_in_words(timing),
        at_once=int(raw.max_concurrency or 1),
        model=str(values.get("model_name", "")),
        created=in_utc(raw.created_at),
        in_flight=tuple(in_flight),
        page=f"{back_end.page('').partition('/#/')[0]}/#/recurringrun/details/{raw.recurring_run_id}",
        parameters=masked(values),
    )


def _is_active(raw: Any) -> bool:
    return str(raw.status or "").upper() == "ENABLED"


def _timing_in_words(timing: Any) -> str:
    """Return the cron expression or the interval of a trigger."""
    cron = getattr(timing, "cron", "")
    return cron or (f"every {timing.interval_second or 1} s" if timing else "unknown")
