"""What a schedule is, and when it starts runs.

The back end computes the next tick: its API does not tell in which time zone it reads cron. It also
names a wrong field of an expression. But it accepts five fields, and reads the first as seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.pipelines.kubeflow.runs import Run
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import counted


@dataclass(frozen=True)
class Trigger:
    """When a schedule starts runs.

    Attributes:
        cron: Six fields, the seconds first, or one of the back end's words: `@daily`, `@every 6h`.
        catch_up: Whether ticks that were missed run later, one by one.

    Raises:
        ConfigurationError: cron does not have six fields.
    """

    cron: str
    catch_up: bool = False

    def __post_init__(self) -> None:
        """Refuse what the back end would accept with another meaning."""
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
    catch_up: bool
    at_once: int
    model: str
    created: str
    in_flight: tuple[Run, ...] = ()
    page: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
