"""What a schedule is, and when it starts runs.

The back end computes the next tick: its API does not tell in which time zone it reads cron. It also
names a wrong field of an expression. But it accepts five fields, and reads the first as seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfp_tfjob.pipelines.kubeflow.runs import Run
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import counted

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_INTERVAL = re.compile(r"0*([1-9]\d*)([smhd]?)")


@dataclass(frozen=True)
class Trigger:
    """When a schedule starts runs: by cron, or in an interval.

    Attributes:
        cron: Six fields, the seconds first, or one of the back end's words: `@daily`, `@every 6h`.
            Empty for an interval.
        seconds: The interval; 0 for cron.
        start: No tick is before it; None for the creation of the schedule.
        end: No tick is after it; None for no end.
        catch_up: Whether ticks that were missed run later, one by one.

    Raises:
        ConfigurationError: There is not one of both, or cron does not have six fields.
    """

    cron: str = ""
    seconds: int = 0
    start: datetime | None = None
    end: datetime | None = None
    catch_up: bool = False

    def __post_init__(self) -> None:
        """Refuse what the back end would accept with another meaning."""
        if bool(self.cron) == bool(self.seconds):
            raise ConfigurationError(
                Problem(
                    "a schedule needs --cron or --every",
                    received="both" if self.cron else "neither",
                    expected="one of them",
                    fix="for 3 a.m. every day: --cron '0 0 3 * * *'; for every six hours:"
                    " --every 6h",
                )
            )
        fields = self.cron.split()
        if self.cron and not self.cron.startswith("@") and len(fields) != 6:
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
        start: No tick is before it; empty for none.
        end: No tick is after it; empty for none.
        catch_up: Whether missed ticks run later.
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
    start: str
    end: str
    catch_up: bool
    at_once: int
    model: str
    created: str
    in_flight: tuple[Run, ...] = ()
    page: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def interval(text: str) -> int:
    """Return the seconds of an interval such as `6h`, `30m`, `1d` or `900`.

    Raises:
        ConfigurationError: It is no interval.
    """
    match = _INTERVAL.fullmatch(text.strip().lower())
    if not match:
        raise ConfigurationError(
            Problem(
                "--every is not an interval",
                received=repr(text),
                expected="a number of seconds, or a number with s, m, h or d: 900, 30m, 6h, 1d",
                fix="correct --every",
            )
        )
    return int(match[1]) * _UNITS[match[2]]
