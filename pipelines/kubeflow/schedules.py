"""Schedules of a back end, which it calls recurring runs: made, replaced, listed and ended.

Deleting a schedule deletes the Workflows of its runs with it, and so their training. So a schedule
with runs in flight is never deleted unless a user asks for it.

The back end computes the next tick: its API does not tell in which time zone it reads cron. It also
names a wrong field of an expression. But it accepts five fields, and reads the first as seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.pipelines.kubeflow.connection import BackEnd, equals
from kfp_tfjob.pipelines.kubeflow.errors import UnknownRunError
from kfp_tfjob.pipelines.kubeflow.package import Package
from kfp_tfjob.pipelines.kubeflow.runs import (
    RUNNING,
    WAITING,
    Run,
    in_utc,
    is_ours,
    parameters_of,
    raw_runs,
    run_of,
)
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import counted


@dataclass(frozen=True)
class Trigger:
    """When a schedule starts runs.

    Attributes:
        cron: Six fields, the seconds first, or one of the back end's words: `@daily`, `@every 6h`.

    Raises:
        ConfigurationError: cron does not have six fields.
    """

    cron: str

    def __post_init__(self) -> None:
        """Reject what the back end would accept with another meaning."""
        fields = self.cron.split()
        if not self.cron.startswith("@") and len(fields) != 6:
            raise ConfigurationError(
                Problem(
                    "--cron has the wrong number of fields",
                    received=f"{self.cron!r}, {counted(len(fields), 'field')}",
                    expected="seconds, minutes, hours, day of month, month, day of week",
                    fix=f"put the seconds first: '0 {' '.join(fields)}'"
                    if len(fields) == 5
                    else "for 3 a.m. every day: '0 0 3 * * *'",
                )
            )


@dataclass(frozen=True)
class Schedule:
    """A schedule, as the back end describes it.

    Attributes:
        schedule_id: Its id.
        name: Its name.
        state: `active` or `paused`.
        when: The cron expression, or the interval as text.
        at_once: How many of its runs may be in flight.
        model: The run parameter model_name.
        created: When it was made.
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
    """Yield the schedules of this pipeline, or those of one name, the newest first."""
    runs = _runs(back_end)
    for raw in _raw(back_end, name):
        yield _schedule(back_end, raw, runs[raw.recurring_run_id])


def find_schedule(back_end: BackEnd, given: str) -> Schedule:
    """Return a schedule by its name, its id, or a unique beginning of the id.

    Of several schedules of one name, the active one is meant.
    """
    known = list(list_schedules(back_end))
    found = [it for it in known if given in (it.name, it.schedule_id)]
    found = found or [it for it in known if len(given) > 3 and it.schedule_id.startswith(given)]
    found = [it for it in found if it.state == "active"] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{it.name} ({it.schedule_id[:8]}, {it.state})" for it in found or known[:5])
    raise UnknownRunError(
        Problem(
            "there are several such schedules" if found else "there is no such schedule",
            received=given,
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
    at_once: int = 1,
    account: str = "",
) -> tuple[Schedule, list[Schedule]]:
    """Make a schedule, in place of one with the same name.

    The new one is made paused, the old one is paused, the new one starts, and then the old one is
    deleted if none of its runs is in flight. So at no time do both start runs, and no run ends.
    `Client.schedule` describes the arguments and the result.
    """
    models, api = back_end.sdk.api_models, back_end.sdk.recurring_runs
    old = list(_raw(back_end, name))
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
    made = back_end.once(
        "make the schedule", api.recurring_run_service_create_recurring_run, recurring_run=body
    ).recurring_run_id
    for raw in old:
        if _is_active(raw):
            _switch(back_end, raw.recurring_run_id, active=False)
    _switch(back_end, made, active=True)
    kept, runs = [], _runs(back_end)
    for raw in old:
        if of := runs[raw.recurring_run_id]:
            kept.append(_schedule(back_end, _read(back_end, raw.recurring_run_id), of))
        else:
            _delete(back_end, raw.recurring_run_id)
    return _schedule(back_end, _read(back_end, made), runs[made]), kept


def delete(back_end: BackEnd, schedule: Schedule) -> None:
    """Delete a schedule.

    Kubeflow Pipelines would delete the Workflows of its runs, which then never end in its API.
    """
    _switch(back_end, schedule.schedule_id, active=False)  # so that no run starts meanwhile
    if runs := _runs(back_end)[schedule.schedule_id]:
        raise ConfigurationError(
            Problem(
                f"{schedule.name} is only paused, because deleting it would end its runs in flight",
                received=", ".join(f"{run.name} ({run.run_id[:8]}, {run.state})" for run in runs),
                expected="no run in flight",
                fix="cancel them with `kfp-tfjob cancel`, or wait until they end; then delete it",
            )
        )
    _delete(back_end, schedule.schedule_id)


def _runs(back_end: BackEnd) -> Mapping[str, list[Run]]:
    """Return the runs in flight of every schedule, in one pass: the API cannot select them."""
    known: dict[str, list[Run]] = defaultdict(list)
    for raw in raw_runs(back_end):
        if not raw.recurring_run_id:
            continue
        run = run_of(back_end, raw)
        if run.state in (*WAITING, *RUNNING):
            known[raw.recurring_run_id].append(run)
    return known


def _raw(back_end: BackEnd, name: str = "") -> Iterator[Any]:
    where = {"filter": equals("name", name)} if name else {}
    for raw in back_end.pages(
        "list the schedules",
        back_end.sdk.recurring_runs.recurring_run_service_list_recurring_runs,
        "recurring_runs",
        sort_by="created_at desc",
        namespace=back_end.namespace,
        **where,
    ):
        if is_ours(raw) and (not name or raw.display_name == name):
            yield raw


def _read(back_end: BackEnd, schedule_id: str) -> Any:
    method = back_end.sdk.recurring_runs.recurring_run_service_get_recurring_run
    return back_end.call("read the schedule", method, recurring_run_id=schedule_id)


def _delete(back_end: BackEnd, schedule_id: str) -> None:
    method = back_end.sdk.recurring_runs.recurring_run_service_delete_recurring_run
    back_end.call("delete the schedule", method, recurring_run_id=schedule_id)


def _switch(back_end: BackEnd, schedule_id: str, active: bool) -> None:
    api = back_end.sdk.recurring_runs
    enable = api.recurring_run_service_enable_recurring_run
    disable = api.recurring_run_service_disable_recurring_run
    what = "resume the schedule" if active else "pause the schedule"
    back_end.call(what, enable if active else disable, recurring_run_id=schedule_id)


def _schedule(back_end: BackEnd, raw: Any, in_flight: list[Run]) -> Schedule:
    values, trigger = parameters_of(raw), raw.trigger
    it = (trigger.cron_schedule or trigger.periodic_schedule) if trigger else None
    return Schedule(
        schedule_id=raw.recurring_run_id,
        name=raw.display_name or "",
        state="active" if _is_active(raw) else "paused",
        when=_when(it),
        at_once=int(raw.max_concurrency or 1),
        model=str(values.get("model_name", "")),
        created=in_utc(raw.created_at),
        in_flight=tuple(in_flight),
        page=f"{back_end.page('').partition('/#/')[0]}/#/recurringrun/details/{raw.recurring_run_id}",
        parameters=masked(values),
    )


def _is_active(raw: Any) -> bool:
    return str(raw.status or "").upper() == "ENABLED"


def _when(it: Any) -> str:
    cron = getattr(it, "cron", "")
    return cron or (f"every {it.interval_second or 1} s" if it else "unknown")
