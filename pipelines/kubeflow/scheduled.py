"""What a schedule is: when it starts runs, and what the run of each tick reads and writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kfp_tfjob.components.preflight.parameters import job_spec
from kfp_tfjob.options import fields
from kfp_tfjob.options.fields import Tick
from kfp_tfjob.pipelines.kubeflow.runs import Run
from kfp_tfjob.pipelines.kubeflow.ticks import Trigger, first
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.layout import Layout

ZONE = "CRON_SCHEDULE_TIMEZONE"  # of the controller; here, only to show its ticks
_SHOWN = 3  # ticks
_COUNTED = 1000  # missed ticks


@dataclass(frozen=True)
class TickInputs:
    """What the run of one tick reads and where it writes.

    Attributes:
        tick: The time, in UTC.
        data: data_uri of that run.
        folder: The folder of that run, without its id; empty if output_uri shapes none.
        missed: Whether the time has passed without a run.
    """

    tick: str
    data: str
    folder: str
    missed: bool


@dataclass(frozen=True)
class Schedule:
    """A schedule.

    Attributes:
        schedule_id: Its id.
        name: Its name.
        state: `active` or `paused`.
        when: The cron expression, or the interval as text.
        start: No tick is before it; empty for none.
        end: No tick is after it; empty for none.
        catch_up: Whether missed ticks run later.
        at_once: How many of its runs may be in flight.
        model: The run parameter model_name.
        created: When it was made.
        zone: The time zone of its cron expression.
        ticks: The next ticks with their inputs; none while it is paused.
        waiting: How many ticks have passed without a run. Kubeflow Pipelines runs them first, but
            it can lose one that came during a run.
        in_flight: Its runs that have not ended.
        page: Its address in the UI.
        parameters: The run parameters, with secret-looking values masked.
    """

    schedule_id: str
    name: str
    state: str
    when: str
    start: str
    end: str
    catch_up: bool
    at_once: int
    model: str
    created: str
    zone: str
    ticks: tuple[TickInputs, ...] = ()
    waiting: int = 0
    in_flight: tuple[Run, ...] = ()
    page: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def zone_of(given: str = "") -> ZoneInfo:
    """Return the one time zone in which the back end reads cron.

    The API does not tell it: the controller has it from CRON_SCHEDULE_TIMEZONE, and without that
    variable it is UTC.

    Args:
        given: A zone that the user asked for; empty for none.

    Raises:
        ConfigurationError: There is no such zone, or it is not that of the back end.
    """
    name = os.environ.get(ZONE) or "UTC"
    for zone, where in ((name, ZONE), (given or name, "--time-zone")):
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigurationError(
                Problem(
                    f"{where} is not a time zone",
                    received=repr(zone),
                    expected="a name such as UTC or Europe/Berlin",
                    fix=f"correct {where}",
                )
            ) from None
    if given and given != name:
        raise ConfigurationError(
            Problem(
                "a schedule cannot have a time zone of its own",
                received=f"--time-zone {given}",
                expected=f"{name}: Kubeflow Pipelines reads all cron expressions in one zone, which"
                f" {ZONE} of its controller sets",
                fix=f"write the expression in {name} and omit --time-zone; or, if {given} is the"
                f" zone of the controller, set {ZONE}={given} here too",
            )
        )
    return ZoneInfo(name)


def inputs(values: Mapping[str, Any], tick: datetime, now: datetime) -> TickInputs:
    """Return what the run of a tick reads, and where it writes.

    Args:
        values: Every run parameter.
        tick: The tick.
        now: The present.
    """
    at = Tick(tick.astimezone(UTC))
    folder = ""
    try:
        layout = Layout.parse(str(values["output_uri"]))
        if layout.template:
            spec = job_spec(values)
            name = str(values["model_name"]).strip()
            found = fields.folder(layout.template, at, name, spec.gpus, spec.pod)
            folder = layout.run("RUN-ID", found).base
    except StepError:
        pass  # a schedule of another user may have wrong parameters
    return TickInputs(str(at), fields.fill(str(values["data_uri"]), at), str(folder), tick <= now)


def next_inputs(
    values: Mapping[str, Any],
    trigger: Trigger,
    created: datetime,
    zone: ZoneInfo,
    now: datetime | None = None,
    last: datetime | None = None,
) -> tuple[tuple[TickInputs, ...], int]:
    """Return the next three ticks with their inputs, and how many ticks were missed.

    Args:
        values: Every run parameter.
        trigger: When the schedule starts runs.
        created: When it was made.
        zone: The zone of the controller.
        now: The present; None to ask the clock.
        last: The last tick that started a run.
    """
    now = now or datetime.now(UTC)
    found = first(trigger.ticks(created, now, zone, last), _SHOWN)
    missed = 0
    for tick in trigger.ticks(created, now, zone, last):
        if tick > now or missed == _COUNTED:
            break
        missed += 1
    return tuple(inputs(values, tick, now) for tick in found), missed
