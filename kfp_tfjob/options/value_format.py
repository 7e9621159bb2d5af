"""How files write the numbers or dates of a column: a value of `data_options.types`.

A format that a user names is a string in stored files: `number 1.234,5` or `date %d.%m.%Y`. Called
by the form of `data_options`, and by the parsers of numbers and dates.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import field_validator, model_validator

from .parse import Group, Text, option

_BETWEEN = " or "  # separates several patterns of dates
# Written with a pattern and parsed again, these days come back only if the pattern has day, month
# and year; one has parts of two digits, the other parts with leading zeros.
_DAYS = (datetime(2024, 12, 31, 23, 59, 58, tzinfo=UTC), datetime(1987, 6, 5, tzinfo=UTC))


class NumberFormat(Group):
    """The separators of a number."""

    decimal: Literal[".", ","] = option(".", "The decimal separator.")
    thousands: Literal["", ".", ",", " ", "'"] = option(
        "", "The character between groups of three digits. A space may also be a narrow one."
    )

    @model_validator(mode="after")
    def _differ(self) -> NumberFormat:
        if self.decimal == self.thousands:
            raise ValueError("two different separators")
        return self


class ValueFormat(Group):
    """The format of a column."""

    number: NumberFormat | None = option(
        None, "The separators in numbers, which may include a currency sign or a percent sign."
    )
    date: tuple[Text, ...] | None = option(
        None, "The format of dates, in the directives of Python's `strptime`, or a list of formats."
    )

    @field_validator("date", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("date")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if patterns is not None and not (patterns and all(map(_is_pattern, patterns))):
            raise ValueError("formats with day, month and year, for example %d.%m.%Y")
        return patterns

    @model_validator(mode="after")
    def _one(self) -> ValueFormat:
        if (self.number is None) == (self.date is None):
            raise ValueError('either number or date, for example {"date": "%d.%m.%Y"}')
        return self

    @property
    def kind(self) -> Literal["number", "date"]:
        """The column's type."""
        return "date" if self.date else "number"

    def __str__(self) -> str:
        """Return the format's string in stored files and logs, for example `date %d.%m.%Y`."""
        if self.number:
            return f"number 1{self.number.thousands}234{self.number.decimal}5"
        return f"date {_BETWEEN.join(self.date or ())}"


def kind_in(format: str) -> str:
    """Return the column type of a format's string: `number` or `date`."""
    return format.partition(" ")[0]


def separators_of(format: str) -> tuple[str, str] | None:
    """Return the thousands and decimal separators in a format's string; None if it is no number."""
    name, _, example = format.partition(" ")
    return (example[1:-5], example[-2]) if name == "number" else None


def patterns_of(format: str) -> list[str]:
    """Return the date patterns in a format's string; empty if it is not a format of dates."""
    name, _, patterns = format.partition(" ")
    return patterns.split(_BETWEEN) if name == "date" else []


def _is_pattern(pattern: str) -> bool:
    """Return whether a pattern has day, month and year, and can be stored."""
    try:
        parsed = [datetime.strptime(day.strftime(pattern), pattern).date() for day in _DAYS]
    except ValueError:
        return False  # a directive that only strftime supports, or that strptime reads otherwise
    return parsed == [day.date() for day in _DAYS] and _BETWEEN not in pattern
