"""Fills in the fields of an address: `{date}`, `{hour}`, `{model_name}` and others.

`{date}` and `{hour}` come from the tick: the time that a schedule planned for the run. A run that
starts late, or is retried the next day, still has its own tick. The clock is never read here.
Called by preflight, and by the commands that start, render or plan a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import did_you_mean, nearest

USER = "user"  # filled in where the command line runs, because no step knows the user
TIMES = ("date", "hour")
IN_DATA = TIMES
IN_FOLDER = (USER, "model_name", "device", *TIMES)
TICK = "scheduled_time"  # the input of preflight that holds the tick

_PARTS = re.compile(r"\{([^{}]*)\}|[{}]")
_TIME = re.compile(r"(date|hour)(?:([+-])([0-9]{1,4})([dh]))?")
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1)}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Tick:
    """The time that a schedule planned for a run; for other runs, the time of their creation.

    Attributes:
        moment: The time in UTC.
    """

    moment: datetime

    @classmethod
    def parse(cls, text: str, name: str = TICK) -> Tick:
        """Read a time such as `2026-11-22T03:00:00Z`; without an offset it is in UTC.

        Args:
            text: The time in ISO 8601.
            name: The name of the text in error messages.

        Raises:
            ConfigurationError: The text is not a time.
        """
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ConfigurationError(
                Problem(
                    f"{name} is not a time",
                    received=repr(text),
                    expected="a time in ISO 8601, for example 2026-11-22T03:00:00Z",
                    fix=f"correct {name}",
                    path=name,
                )
            ) from None
        return cls((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC))

    def __str__(self) -> str:
        """Return the time in ISO 8601, in UTC."""
        return f"{self.moment:%Y-%m-%dT%H:%M:%SZ}"

    def field(self, text: str) -> str | None:
        """Return the value of a field such as `date` or `hour-1h`; None for other fields."""
        match = _TIME.fullmatch(text)
        if match is None:
            return None
        name, sign, number, unit = match.groups()
        offset = _UNITS[unit] * int(f"{sign}{number}") if sign else timedelta()
        try:
            moment = self.moment + offset
        except OverflowError:
            return None  # before year 1 or after year 9999: the field stays as it is
        return f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%H}"


def has_time(text: str) -> bool:
    """Return whether an address depends on the tick."""
    return any(_TIME.fullmatch(field) for field in _fields(text))


def has_user(text: str) -> bool:
    """Return whether an address has the field `{user}`."""
    return USER in _fields(text)


def check(text: str, name: str, fields: Sequence[str]) -> list[Problem]:
    """Return the problems of an address: unknown fields and unmatched braces.

    Args:
        text: The address.
        name: The parameter that holds it.
        fields: The fields that it may have.
    """

    def corrected(match: re.Match[str]) -> str:
        """Return the field that was probably meant by an unknown one, or the match as it is."""
        field = match[1]
        if field is None or _is_allowed(field, fields):
            return match[0]
        near = nearest(field, fields, alike=0.6)
        return f"{{{near}}}" if near else match[0]

    problems = []
    for match in _PARTS.finditer(text):
        part, field = match[0], match[1]
        if field is None:
            problems.append(
                Problem(
                    f"{name} has an unmatched brace",
                    received=repr(text),
                    expected=f"a field such as {{{fields[0]}}}",
                    fix=f"correct {name}",
                    path=name,
                )
            )
        elif not _is_allowed(field, fields):
            suggestion = corrected(match) if corrected(match) != part else ""
            problems.append(
                Problem(
                    f"{name} has an unknown field",
                    received=part,
                    expected=_list_fields(fields),
                    fix=did_you_mean(suggestion, f"correct {name}"),
                    path=name,
                    suggestion=_PARTS.sub(corrected, text) if suggestion else "",
                )
            )
    return problems


def fill(text: str, tick: Tick | None, values: Mapping[str, str] | None = None) -> str:
    """Return an address with its fields filled in; fields without a value stay.

    Args:
        text: The address, which `check` has accepted.
        tick: The run's time; None to leave `{date}` and `{hour}`.
        values: The other fields.
    """

    def replacement(match: re.Match[str]) -> str:
        part, field = match[0], match[1]
        content = (values or {}).get(field or "")
        if content is None and tick and field:
            content = tick.field(field)
        return part if content is None else content

    return _PARTS.sub(replacement, text)


def fill_user(text: str, user: Callable[[], str]) -> str:
    """Return an address with `{user}` replaced by a name that is safe in an address.

    Args:
        text: The address; its other fields stay.
        user: Returns the name; called only if it is needed.
    """
    if not has_user(text):
        return text
    name = safe(user())
    return _PARTS.sub(lambda match: name if match[1] == USER else match[0], text)


def folder(template: str, tick: Tick | None, model_name: str, gpus: int) -> str:
    """Return a run's folders below `runs/`, from the template in output_uri.

    Args:
        template: The folders with fields, which `check` has accepted.
        tick: The run's time; None to leave `{date}` and `{hour}`.
        model_name: The run parameter.
        gpus: The run parameter train_gpus, for `{device}`.
    """
    values = {"model_name": safe(model_name), "device": "gpu" if gpus else "cpu"}
    return fill(template, tick, values)


def safe(text: str) -> str:
    """Return text as one part of an address, with letters, digits, dots, - and _ only."""
    return _UNSAFE.sub("-", text).strip(".-") or "unknown"


def _fields(text: str) -> Iterator[str]:
    return (match[1] for match in _PARTS.finditer(text) if match[1] is not None)


def _is_allowed(field: str, allowed: Sequence[str]) -> bool:
    match = _TIME.fullmatch(field)
    return match[1] in allowed if match else field in allowed


def _list_fields(allowed: Sequence[str]) -> str:
    names = ", ".join(f"{{{name}}}" for name in allowed)
    return f"{names}, or a time with an offset such as {{date-1d}} or {{hour-1h}}"
