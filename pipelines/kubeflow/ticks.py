"""Computes when a schedule of Kubeflow Pipelines starts runs, exactly as its controller does.

The controller parses cron with robfig/cron 1.2, which no Python library follows: seconds come
first, Sunday is 0 and never 7, and a step keeps the meaning of its star for the rule that days of
the month and of the week must both match. A test compares the ticks with those of that library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import islice

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.words import counted

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_DAYS = "sun mon tue wed thu fri sat".split()
_NO_NAMES: dict[str, int] = {}
# Name, least, most, names of numbers.
_FIELDS = (
    ("seconds", 0, 59, _NO_NAMES),
    ("minutes", 0, 59, _NO_NAMES),
    ("hours", 0, 23, _NO_NAMES),
    ("day of month", 1, 31, _NO_NAMES),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)
_DESCRIPTORS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_RANGE = re.compile(r"(?:([*?])(?:-\w+)?|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_DAYS_LOOKED = 5 * 366  # the controller gives up after five years, too
_SHORTEST = 1  # seconds
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INTERVAL = re.compile(r"(\d+)([smhd]?)")


@dataclass(frozen=True)
class Cron:
    """A cron expression with the seconds first.

    Attributes:
        text: The expression, with six fields.
        note: What was changed about the expression as it was given; empty for nothing.
    """

    text: str
    note: str = ""

    @classmethod
    def parse(cls, given: str) -> Cron:
        """Read an expression with six fields, five fields, or a word such as `@daily`.

        Raises:
            ConfigurationError: It is no such expression; every wrong field is a problem.
        """
        text, note = " ".join(given.split()), ""
        if text.lower() in _DESCRIPTORS:
            text = _DESCRIPTORS[text.lower()]
        elif len(text.split()) == 5:
            text = f"0 {text}"
            note = (
                f"five fields were given; Kubeflow Pipelines reads the seconds first, so {text!r}"
                " is used"
            )
        fields = text.split()
        if len(fields) != 6:
            raise ConfigurationError(
                Problem(
                    "--cron has the wrong number of fields",
                    received=f"{given!r}, {counted(len(fields), 'field')}",
                    expected="seconds, minutes, hours, day of month, month, day of week",
                    fix="for three o'clock every day: '0 0 3 * * *'"
                    + ("; for an interval, use --every" if text.startswith("@") else ""),
                )
            )
        problems: list[Problem | str] = []
        for field, (name, least, most, names) in zip(fields, _FIELDS, strict=True):
            try:
                _numbers(field, least, most, names)
            except ValueError as error:
                problems.append(
                    Problem(
                        f"the {name} of --cron cannot be read",
                        received=repr(field),
                        expected=f"{error}",
                        fix=f"correct {field!r}, the {name}, in {text!r}",
                    )
                )
        ConfigurationError.raise_if(problems)
        return cls(text, note)

    def after(self, moment: datetime, zone: tzinfo = UTC) -> Iterator[datetime]:
        """Yield the ticks after a moment, in UTC; they end if there is none for five years.

        An hour that a zone skips has no ticks, and an hour that it repeats has them twice.

        Args:
            moment: A time with a zone.
            zone: The zone of the controller.
        """
        parsed = [
            _numbers(field, least, most, names)
            for field, (_, least, most, names) in zip(self.text.split(), _FIELDS, strict=True)
        ]
        (seconds, _), (minutes, _), (hours, _), (days, any_day), (months, _), (week, any_week) = (
            parsed
        )
        both = any_day or any_week
        day, looked = moment.astimezone(zone).date(), 0
        while looked < _DAYS_LOOKED:
            in_month, in_week = day.day in days, day.isoweekday() % 7 in week
            fits = (in_month and in_week) if both else (in_month or in_week)
            if day.month in months and fits:
                for hour in _hours(day, zone):
                    if hour.astimezone(zone).hour not in hours:
                        continue
                    for minute in minutes:
                        for second in seconds:
                            tick = hour + timedelta(minutes=minute, seconds=second)
                            if tick > moment:
                                looked = 0
                                yield tick
            if day == date.max:
                return
            day += timedelta(days=1)
            looked += 1


@dataclass(frozen=True)
class Trigger:
    """When a schedule starts runs: by cron, or in an interval.

    Attributes:
        cron: The expression; None for an interval.
        seconds: The interval; 0 for cron.
        start: No tick is before it; None for the creation of the schedule.
        end: No tick is after it; None for no end.
        catch_up: Whether ticks that were missed run later, one by one.
    """

    cron: Cron | None = None
    seconds: int = 0
    start: datetime | None = None
    end: datetime | None = None
    catch_up: bool = False

    def ticks(
        self, created: datetime, now: datetime, zone: tzinfo = UTC, last: datetime | None = None
    ) -> Iterator[datetime]:
        """Yield the ticks that start runs from now on, missed ones first.

        Args:
            created: When the schedule was created.
            now: The present.
            zone: The zone of the controller, for cron.
            last: The last tick that started a run; None if there was none.
        """
        base = last or self.start or created
        if self.cron:
            found = self._by_cron(self.cron, base, now, zone)
        else:
            found = self._by_interval(base, now)
        for tick in found:
            if self.end and tick > self.end:
                return
            yield tick

    def _by_cron(
        self, cron: Cron, base: datetime, now: datetime, zone: tzinfo
    ) -> Iterator[datetime]:
        missed = None  # without catch-up, only the newest of them runs
        for tick in cron.after(max(base, self.start or base), zone):
            if not self.catch_up and tick <= now and not (self.end and tick > self.end):
                missed = tick
                continue
            if missed:
                yield missed
                missed = None
            yield tick
        if missed:
            yield missed

    def _by_interval(self, base: datetime, now: datetime) -> Iterator[datetime]:
        every = timedelta(seconds=self.seconds)
        tick = self.start if self.start and self.start > base else base + every
        if not self.catch_up and tick + every <= now:
            tick = now.replace(microsecond=0)  # the controller takes the present, not the last one
        while True:
            yield tick
            tick += every


def interval(text: str) -> int:
    """Return the seconds of an interval such as `6h`, `30m`, `1d` or `900`.

    Raises:
        ConfigurationError: It is no interval.
    """
    match = _INTERVAL.fullmatch(text.strip().lower())
    seconds = int(match[1]) * _UNITS[match[2] or "s"] if match else 0
    if seconds < _SHORTEST:
        raise ConfigurationError(
            Problem(
                "--every is not an interval",
                received=repr(text),
                expected="a number of seconds, or a number with s, m, h or d: 900, 30m, 6h, 1d",
                fix="correct --every",
            )
        )
    return seconds


def _hours(day: date, zone: tzinfo) -> Iterator[datetime]:
    """Yield the beginning of each hour of a day in UTC: 24 of them, or 23 or 25."""
    hour = datetime.combine(day, time(), zone).astimezone(UTC)
    while hour.astimezone(zone).date() < day:
        hour += timedelta(hours=1)
    for _ in range(26):
        if hour.astimezone(zone).date() == day:
            yield hour
        hour += timedelta(hours=1)


def _numbers(field: str, least: int, most: int, names: dict[str, int]) -> tuple[list[int], bool]:
    """Return the numbers of a field, and whether it has a star.

    Raises:
        ValueError: The field is wrong; its text says what is expected.
    """
    expected = f"numbers from {least} to {most}"
    expected += f", or {', '.join(names)}" if names else ""
    found: set[int] = set()
    star = False
    for part in (item for item in field.split(",") if item):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{expected}; *, a-b, a-b/step and lists; no L, W or #")
        if match[1]:
            low, high, star = least, most, True
        else:
            low = _number(match[2], names, expected)
            high = _number(match[3], names, expected) if match[3] else low
            high = most if match[4] and not match[3] else high
        if low < least or high > most or low > high:
            hint = "; Sunday is 0" if names and "sun" in names and high == 7 else ""
            raise ValueError(f"{expected}, the smaller one first{hint}")
        step = int(match[4] or 1)
        if not step:
            raise ValueError("a step of 1 or more")
        found.update(range(low, high + 1, step))
    if not found:
        raise ValueError(expected)
    return sorted(found), star


def _number(text: str, names: dict[str, int], expected: str) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{expected}; *, a-b, a-b/step and lists; no L, W or #")
    return int(text)


def first(ticks: Iterator[datetime], most: int) -> list[datetime]:
    """Return the first ticks."""
    return list(islice(ticks, most))
