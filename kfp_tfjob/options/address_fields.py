"""Fills in the fields of an address: `{date}`, `{hour}`, `{model_name}` and others.

`{date}` and `{hour}` come from the tick: the time that a schedule planned for the run. A run that
starts late, or is retried the next day, still has its own tick. The clock is never read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import did_you_mean, nearest

USER = "user"
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
            ConfigurationError: It is no such time.
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
        """Return the value of `date` or `hour`, with an offset or without; None for other text."""
        match = _TIME.fullmatch(text)
        if match is None:
            return None
        what, sign, number, unit = match.groups()
        away = _UNITS[unit] * int(f"{sign}{number}") if sign else timedelta()
        try:
            moment = self.moment + away
        except OverflowError:
            return None
        return f"{moment:%Y-%m-%d}" if what == "date" else f"{moment:%H}"


def has_time(text: str) -> bool:
    """Return whether an address depends on the tick."""
    return any(_TIME.fullmatch(field) for field in _fields(text))


def has_user(text: str) -> bool:
    """Return whether an address has the field `{user}`."""
    return USER in _fields(text)


def check(text: str, name: str, known: Sequence[str]) -> list[Problem]:
    """Return the problems of the fields of an address.

    Args:
        text: The address.
        name: The parameter.
        known: The fields that it may have.
    """

    def meant(match: re.Match[str]) -> str:
        """Return a field that exists, for one that does not; itself if none is like it."""
        field = match[1]
        if field is None or _is_known(field, known):
            return match[0]
        near = nearest(field, known, alike=0.6)
        return f"{{{near}}}" if near else match[0]

    problems = []
    for match in _PARTS.finditer(text):
        part, field = match[0], match[1]
        if field is None:
            problems.append(
                Problem(
                    f"{name} has an unmatched brace",
                    received=repr(text),
                    expected=f"a field such as {{{known[0]}}}",
                    fix=f"correct {name}",
                    path=name,
                )
            )
        elif not _is_known(field, known):
            better = meant(match) if meant(match) != part else ""
            problems.append(
                Problem(
                    f"{name} has an unknown field",
                    received=part,
                    expected=_words(known),
                    fix=did_you_mean(better, f"correct {name}"),
                    path=name,
                    suggestion=_PARTS.sub(meant, text) if better else "",
                )
            )
    return problems


def fill(text: str, tick: Tick | None, values: Mapping[str, str] | None = None) -> str:
    """Return an address with its fields filled in; those without a value stay.

    Args:
        text: The address, which `check` has accepted.
        tick: The run's time; None to leave `{date}` and `{hour}`.
        values: The other fields.
    """

    def value(match: re.Match[str]) -> str:
        part, field = match[0], match[1]
        found = (values or {}).get(field or "")
        if found is None and tick and field:
            found = tick.field(field)
        return part if found is None else found

    return _PARTS.sub(value, text)


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
    """Return text as one part of an address: letters, digits, dots, - and _."""
    return _UNSAFE.sub("-", text).strip(".-") or "unknown"


def _fields(text: str) -> Iterator[str]:
    return (match[1] for match in _PARTS.finditer(text) if match[1] is not None)


def _is_known(field: str, known: Sequence[str]) -> bool:
    match = _TIME.fullmatch(field)
    return match[1] in known if match else field in known


def _words(known: Sequence[str]) -> str:
    named = ", ".join(f"{{{name}}}" for name in known)
    return f"{named}, or a time with an offset such as {{date-1d}} or {{hour-1h}}"
