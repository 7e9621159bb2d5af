"""Dates and times: year, month, day, weekday, hour and seconds in a packed row.

A string is a date in ISO 8601: YYYY-MM-DD, with or without a time. A time is a blank or T, then hh,
hh:mm, hh:mm:ss or a fraction of up to nine digits (only six count). It may end with Z or the offset
from UTC, as in +02:00; a time without either is in UTC. The years are 1 to 9999. Shards contain
microseconds since 1970, UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.value_format import patterns_of

from ..cells import (
    BLANKS,
    FIRST_DATE,
    LAST_DATE,
    Cells,
    Parsed,
    cast_all,
    matches,
    microseconds_of,
    shown_date,
)
from .base import (
    NO_DATE,
    WHOLES,
    ColumnStatistics,
    ColumnType,
    Read,
    Reading,
    Summary,
    TrainValues,
    Votes,
    bars_of,
    named,
    text_of,
)

SECOND = 1_000_000  # microseconds
_DAY_SECONDS = 86_400
# Microseconds in a request: fewer may be milliseconds of today, more are beyond the year 9999.
_FEWEST, _MOST = 10**14, 253_402_300_800 * 10**6
# Dates before and after these are hardly of one column if their years have two digits.
_OLD, _FUTURE = (
    int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * SECOND for year in (1990, 2040)
)
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_CLOCK = r"[0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?)?"
_PLAIN = rf"^{_DAY}([ T]{_CLOCK})?$"
_ZONED = rf"^{_DAY}[ T]{_CLOCK}{_ZONE}$"
_DOTTED = rf"^[0-9]{{1,2}}\.[0-9]{{1,2}}\.[0-9]{{4}}([ T]{_CLOCK}{_ZONE}?)?$"
UNIT = pa.timestamp("us")
_DATE, _OTHER_FORM, _DOTTED_FORM = "date", "other date", "dotted date"
# With two digits of the year, a version such as 1.2.10 has the form, too, so other parts count.
_PART = "(0?[1-9]|[12][0-9]|3[01])"
_OTHER = (
    r"^([0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"
    rf"|{_PART}[.]{_PART}[.][0-9]{{2}}|{_PART}-{_PART}-[0-9]{{2}}"
    r"|[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2})([ T,].*)?$"
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_NAMED = (
    r"(?i)^((mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? +)?"
    rf"([0-9]{{1,2}}(st|nd|rd|th)?[ ./-]+{_MONTH}[ ,./-]+([0-9]{{4}}|[0-9]{{2}})"
    rf"|{_MONTH} +[0-9]{{1,2}}(st|nd|rd|th)?,? +([0-9:]+ +([+-][0-9]{{4}} +)?)?[0-9]{{4}})"
    r"([ T,].*)?$"
)
_NUMBERS = re.compile("(?:%[dmyYHIMSj])+")  # directives of strptime with nothing between them
_WIDTHS = {"Y": 4, "j": 3}
DAY_FIRST = "31.12.2024"  # the name of the format that `of_dotted` reads
_ZONE_NAME = re.compile(r"[0-9]:[0-9]{2}[0-9.:]*[ ]?([A-Za-z]{2,5}|[A-Z][a-z]+/[A-Za-z_]+)$")
_NO_MONTH = "0000-00-00"  # of MySQL
_NO_ZONES = ("AM", "PM", "UTC", "GMT")
# Formats that a message may name for dates that are not in ISO 8601.
_DAYS = (
    *(f"%{first}{mark}%{second}{mark}%Y" for first, second in ("dm", "md") for mark in "/-."),
    *(f"%Y{mark}%m{mark}%d" for mark in "-/."),
    *(f"%{first}{mark}%{second}{mark}%y" for first, second in ("dm", "md") for mark in "/-."),
    *(f"%d{mark}%{month}{mark}%{year}" for mark in " -/" for month in "bB" for year in "Yy"),
    *(
        f"{weekday}%d{dot} %{month} %Y"
        for weekday in ("", "%a, ", "%A, ")
        for dot in ("", ".")
        for month in "bB"
    ),
    *(
        f"{weekday}%{month} %d{comma} %Y"
        for weekday in ("", "%a ", "%a, ", "%A, ")
        for comma in ("", ",")
        for month in "bB"
    ),
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_DIRECTIVES = {
    **dict.fromkeys("dmHIMS", "[0-9]{1,2}"),
    **{"Y": "[0-9]{4}", "y": "[0-9]{2}", "f": "[0-9]{1,6}", "p": "[AaPp][Mm]"},
    **{"a": "[A-Za-z]{3}", "A": "[A-Za-z]{6,9}", "b": "[A-Za-z]{3}", "B": "[A-Za-z]{3,9}"},
    **{"z": "(Z|[+-][0-9]{2}:?[0-9]{2})", "Z": "(UTC|GMT)"},
}
_USUAL = {_DATE: "2024-12-31", _DOTTED_FORM: "31.12.2024"}
_MOST_READINGS = 4


@dataclass(frozen=True, kw_only=True)
class DateStatistics(ColumnStatistics):
    """The first and the last date, and a histogram of some rows."""

    min: str | None
    max: str | None
    histogram: list[int]

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal."""
        return self.min == self.max

    @property
    def words(self) -> str:
        """The first and the last date as a string."""
        return f"{self.min} to {self.max}"


@dataclass(frozen=True)
class Date(ColumnType):
    """A date, with a time or not.

    Attributes:
        origin: The first one of the training rows.
    """

    origin: int = field(kw_only=True)

    kind = "date"
    schema_type = "date"
    field = WHOLES
    parts = (".year", ".month", ".day", ".weekday", ".hour", ".seconds")  # Monday is 0
    raw_types = ("int64",)
    raw_missing = NO_DATE
    sample_type = pa.timestamp("us", "UTC")
    datatypes = ("BYTES", "INT64")
    written = "a string with an ISO 8601 date, such as 2026-11-22 or 2026-11-22T08:30:00Z"
    edge_type = str
    arrow_type = UNIT
    nouns = ("a date", "dates")
    drift_bins = "edges"
    moves_on = True
    statistics = DateStatistics

    @classmethod
    def fit(cls, name: str, values: TrainValues, options: DataOptions) -> Self:
        """Return the encoding of a column, learned from train."""
        return cls(name, cls.learn_missing(values), origin=values.first)

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Return timestamps in UTC; null if missing."""
        return super().to_arrow(values).cast(self.sample_type)

    @classmethod
    def constant(cls, text: str) -> int | None:
        """Return the date."""
        dates, good = parse_all(pa.array([text]))
        return int(dates[0]) if good[0] else None

    forms = (_DATE, _OTHER_FORM, _DOTTED_FORM)
    parsed_forms = (_DATE, _DOTTED_FORM)
    odd_forms = (_OTHER_FORM,)
    expected = "dates such as 2024-12-31 or 2024-12-31T23:59:59+01:00"

    @classmethod
    def count(cls, cells: Cells) -> dict[str, int] | None:
        """Return the dates of a temporal column, or of strings that all are of one form."""
        if cells.is_temporal:
            return {_DATE: len(cells.column) - cells.column.null_count}
        if not cells.is_plain or (dates := cells.once(parse_uniform)) is None:
            return None
        return {_DATE: int(np.count_nonzero(dates != NO_DATE))}

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return the forms of dates."""
        dotted = matches(texts, _DOTTED)
        days = parse_forms(texts)[1]
        masks = [(_OTHER_FORM, matches(texts, pattern) & short) for pattern in (_OTHER, _NAMED)]
        return [*masks, (_DATE, days), (_DOTTED_FORM, days & dotted)]

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Return whether most values are dates in ISO 8601 or days with dots."""
        return votes.are_most(_DATE, _DOTTED_FORM)

    @classmethod
    def unclear(cls, votes: Votes) -> str:
        """Return that day and month may be confused, or that forms differ."""
        if not votes.are_most(*cls.forms):
            return ""
        several = votes.of(*cls.parsed_forms)
        return "dates in several formats" if several else "dates in another format than 2024-12-31"

    @classmethod
    def readings_of(cls, texts: Sequence[str], votes: Votes | None = None) -> list[Reading]:
        """Return the patterns by which most strings are dates; of several forms, one for each."""
        readable = [text for text in texts if _candidates(text)]
        if 2 * len(readable) < len(texts) or not readable:
            return []
        if votes:  # without their times, which are not known here
            readable += [text for form, text in _USUAL.items() if votes.of(form)]
        return [
            Reading({"date": patterns[0] if len(patterns) == 1 else patterns}, example)
            for patterns, example in _readings(readable)
        ]

    @classmethod
    def oddity_of(cls, texts: Sequence[str]) -> tuple[str, str]:
        """Describe dates without a month, or with the name of a time zone."""
        if zeros := next((text for text in texts if text.startswith(_NO_MONTH)), ""):
            return (
                f"dates such as {zeros}",
                f"add {zeros} to data_options.null_values if it means a missing value",
            )
        for text in texts:
            if (zone := _ZONE_NAME.search(text)) and zone[1].upper() not in _NO_ZONES:
                return (
                    f"dates with the name of a time zone, {zone[1]}, which may mean several",
                    "write the offset, such as +01:00, instead of the name",
                )
        return "", ""

    @classmethod
    def format_in(cls, votes: Votes) -> str:
        """Return DAY_FIRST for days with dots; dates in ISO 8601 mean the same in it."""
        return DAY_FIRST if votes.of(_DOTTED_FORM) else ""

    @classmethod
    def plain(cls, texts: pa.Array, written: str, sign: str | None = None) -> pa.Array:
        """Return dates in a format in ISO 8601."""
        patterns = patterns_of(written)
        return of_patterns(texts, patterns) if patterns else of_dotted(texts)

    @classmethod
    def parse(cls, cells: Cells) -> Parsed:
        """Return microseconds since 1970, UTC, and the rows that are not a date."""
        if cells.is_temporal:
            times, invalid = microseconds_of(cells.column)
            return Parsed(np.where(invalid, 0, times), {"date": invalid})
        if cells.is_numeric:
            return cells.refused("date", NO_DATE)
        if column := cells.quickly(parse_uniform, NO_DATE):
            return column
        times, is_date = parse_all(cells.distinct[0])
        return cells.parsed(np.where(is_date, times, 0), NO_DATE, {"date": ~is_date})

    @classmethod
    def are_valid(cls, column: pa.Array) -> bool:
        """Return whether all dates are of the years 1 to 9999."""
        ends = pc.min_max(column.cast(pa.int64())).as_py()
        return ends["min"] is None or FIRST_DATE <= ends["min"] <= ends["max"] <= LAST_DATE

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return (rows, columns) for each part; the last one is the seconds since the origin."""
        import tensorflow as tf

        origins = tf.constant([column.origin for column in columns], tf.int64)
        *parts, seconds, microseconds = date_parts(values, origins)
        return [*parts, tf.cast(seconds, tf.float64) + tf.cast(microseconds, tf.float64) / SECOND]

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return microseconds since 1970, UTC.

        The signature takes microseconds, so TensorFlow Serving does, too, and they are read if they
        cannot be seconds or milliseconds.
        """
        texts = [text_of(value) for value in values]
        texts = [None if text is None else text.strip(BLANKS) for text in texts]
        # Half of a surrogate pair cannot be an Arrow string, and no date has such characters.
        ascii_texts = [text if text and text.isascii() else "" for text in texts]
        whole_numbers = {
            row: int(value)
            for row, value in enumerate(values)
            if isinstance(value, int | np.integer) and not isinstance(value, bool)
        }
        wrong = [
            (row, f"{named(value)} instead of a date")
            for row, (value, text) in enumerate(zip(values, texts, strict=True))
            if text is None
            and value is not None
            and not _is_microseconds(whole_numbers.get(row, 0))
        ]
        dates, good = parse_all(pa.array(ascii_texts, pa.string()))
        wrong += [(int(row), "no date") for row in np.flatnonzero(~good) if texts[row]]
        for row in whole_numbers.keys() - {row for row, _ in wrong}:
            dates[row] = whole_numbers[row]
        return dates, sorted(wrong)

    def describe(self, column: Summary) -> DateStatistics:
        """Return the first and the last date, and a histogram."""
        low, high, bars = None, None, []
        if column.least is not None:
            low, high = shown_date(column.least), shown_date(column.most)
            ends = float(column.least), float(column.most)
            bars = bars_of(column.sample.astype(np.float64), *ends)
        return DateStatistics(min=low, max=high, histogram=bars)

    def suspicions(
        self, values: Summary, column: ColumnStatistics, options: DataOptions
    ) -> list[str]:
        """Return that years with two digits may be of another century."""
        suspicions = super().suspicions(values, column, options)
        two_digits = any("%y" in pattern for pattern in patterns_of(options.format_of(self.name)))
        if two_digits and values.count and values.least < _OLD and values.most >= _FUTURE:
            suspicions.append(
                f"{self.name!r} has dates from {shown_date(values.least)} to"
                f" {shown_date(values.most)}, because years with two digits are read as 1969 to"
                " 2068; if some are of the last century, write four digits"
            )
        return suspicions

    def usual(self, column: ColumnStatistics | None = None) -> int:
        """Return the fill value, or a day in 1973 if a server rejects the fill value."""
        value = int((self.missing and self.missing.value) or 0)
        return value if _is_microseconds(value) else _FEWEST

    @classmethod
    def shown(cls, value: Any) -> str:
        """Return the date with a blank before the time, which is omitted at midnight."""
        return shown_date(value).replace("T", " ")


def _is_microseconds(value: int) -> bool:
    """Return whether a number is a date, or a missing one, as the signature takes it."""
    return value == NO_DATE or _FEWEST <= abs(value) <= _MOST


def date_parts(microseconds: Any, origins: Any) -> tuple[Any, ...]:
    """Return the parts of dates, int64; the last two together are the seconds since the origin.

    Only operators are used, so the arguments are arrays of numpy or tensors of TensorFlow.

    Args:
        microseconds: (...) int64 since 1970, UTC, in the proleptic Gregorian calendar.
        origins: int64 of the same shape, or one that broadcasts to it.

    Returns:
        (...) year, month, day, weekday, hour, whole seconds, microseconds (may be negative).
    """
    seconds = microseconds // SECOND
    days = seconds // _DAY_SECONDS
    # Years that begin in March, so that a leap day is the last day of one: "chrono-Compatible
    # Low-Level Date Algorithms" by H. Hinnant.
    since_0000_03 = days + 719_468
    era = since_0000_03 // 146_097
    day_of_era = since_0000_03 - era * 146_097
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    first = origins // SECOND  # subtracted before the rest, because the difference may overflow
    return (
        year_of_era + era * 400 + month_from_march // 10,
        (month_from_march + 2) % 12 + 1,
        day_of_year - (153 * month_from_march + 2) // 5 + 1,
        (days + 3) % 7,
        (seconds - days * _DAY_SECONDS) // 3600,
        seconds - first,
        (microseconds - seconds * SECOND) - (origins - first * SECOND),
    )


def of_dotted(text: pa.Array) -> pa.Array:
    """Return days such as 8.4.2022, which are day, month and year, in ISO 8601; others as they are.

    Args:
        text: Strings of shape [values]; null stays null.
    """
    dotted = pc.match_substring_regex(text, _DOTTED)
    if not pc.any(dotted).as_py():
        return text
    iso = text
    for pattern, new in (
        (r"^([0-9])\.", r"0\1."),
        (r"^([0-9]{2})\.([0-9])\.", r"\1.0\2."),
        (r"^([0-9]{2})\.([0-9]{2})\.([0-9]{4})", r"\3-\2-\1"),
    ):
        iso = pc.replace_substring_regex(iso, pattern, new)
    return pc.if_else(dotted, iso, text)


def of_patterns(text: pa.Array, patterns: Sequence[str]) -> pa.Array:
    """Return dates in ISO 8601; a string that fits no pattern becomes no date.

    Args:
        text: Strings of shape [values]; null stays null.
        patterns: Directives of strptime; the first that fits counts.
    """
    encoded = text.dictionary_encode()
    # strptime would take the zone of this machine, such as EST, for UTC.
    exact = dict.fromkeys(
        pattern.replace("%Z", zone) for pattern in patterns for zone in ("UTC", "GMT")
    )
    # Arrow's own strptime takes 31.02.2024 for 2 March.
    dates = [_in_iso(text, exact) for text in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(
        encoded.indices, pa.array(dates, pa.string())
    ).dictionary_decode()


def _in_iso(text: str, patterns: Iterable[str]) -> str:
    """Return a date in ISO 8601; if it fits no pattern, the string with `?`, which is no date.

    Without the `?`, a string that happens to be in ISO 8601 would be a date in another format.
    """
    for pattern in patterns:
        with suppress(ValueError):
            moment = datetime.strptime(text.strip(), pattern)
            if _has_digits(text, pattern):
                return moment.isoformat()
    return f"{text}?"


@cache
def _shapes() -> list[tuple[str, re.Pattern[str]]]:
    """Return the patterns that a message may name, and the regular expression of each."""
    clocks = [
        f"{between}{clock}{zone}"
        for between in (" ", "T", ", ")
        for clock in _CLOCKS
        for zone in ("", "%z", " %z", " %Z")
    ]
    patterns = [f"{day}{clock}" for day in _DAYS for clock in ("", *clocks)]
    patterns += [f"%a %b %d %H:%M:%S {zone}%Y" for zone in ("", "%Z ", "%z ")]  # of ctime and date
    return [
        (it, re.compile(re.sub("%([A-Za-z])", lambda found: _DIRECTIVES[found[1]], re.escape(it))))
        for it in patterns
    ]


def _candidates(text: str) -> dict[str, str]:
    """Return the date that a string is by each pattern that fits it, in ISO 8601."""
    candidates: dict[str, str] = {}
    for pattern, shape in _shapes():
        if shape.fullmatch(text) and not (iso := _in_iso(text, [pattern])).endswith("?"):
            candidates[pattern] = iso
    return candidates


def _readings(texts: Sequence[str]) -> list[tuple[list[str], str]]:
    """Return lists of patterns that read strings, each with an example; best only each once."""
    readings: list[tuple[list[str], str]] = []
    meanings = set()
    candidates = _candidates(texts[0])
    dates_by_pattern = {
        pattern: [_in_iso(text, [pattern]) for text in texts] for pattern in candidates
    }
    most_read = max(
        sum(not iso.endswith("?") for iso in column) for column in dates_by_pattern.values()
    )
    for pattern, column in dates_by_pattern.items():
        unread = [text for text, iso in zip(texts, column, strict=True) if iso.endswith("?")]
        if len(texts) - len(unread) < most_read or tuple(column) in meanings:
            continue
        meanings.add(tuple(column))
        example = f"{texts[0]!r} as {candidates[pattern].replace('T00:00:00', '')}"
        readings_of_rest = _readings(unread) if unread else [([], "")]
        readings += [
            ([pattern, *patterns_of_rest], example) for patterns_of_rest, _ in readings_of_rest
        ]
    return readings[:_MOST_READINGS]


def _has_digits(text: str, pattern: str) -> bool:
    """Return whether a string has all digits of the numbers that nothing separates.

    Otherwise 1152024, which is 15 January without its first zero, would be 5 November.
    """
    runs = zip(_NUMBERS.findall(pattern), re.findall("[0-9]+", text), strict=False)
    return all(
        len(run) == 2 or len(digits) >= sum(_WIDTHS.get(it, 2) for it in run[1::2])
        for run, digits in runs
    )


def parse_uniform(text: pa.Array) -> np.ndarray | None:
    """Return the dates of strings that are all dates of one form; None for others.

    Args:
        text: Strings of shape [values]; null is a missing value.

    Returns:
        int64 of shape [values], NO_DATE for a missing value.
    """
    dates = cast_all(text, UNIT)
    if dates is None or not Date.are_valid(dates):
        return None
    return dates.cast(pa.int64()).fill_null(NO_DATE).to_numpy(zero_copy_only=False)


def parse_all(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates of strings, and which strings are dates.

    Args:
        text: Strings of shape [values]; better each only once.

    Returns:
        int64 of shape [values], NO_DATE if it is not a date; and bool of shape [values].
    """
    values = np.full(len(text), NO_DATE, np.int64)
    for pattern, unit in ((_PLAIN, UNIT), (_ZONED, pa.timestamp("us", "UTC"))):
        indices = np.flatnonzero(matches(text, pattern))
        # Truncate to microseconds: Arrow's nanoseconds do not cover all years.
        dates = pc.replace_substring_regex(
            text.take(pa.array(indices)), r"(\.[0-9]{6})[0-9]+", r"\1"
        )
        values[indices] = _cast(dates, unit)
    good = (values >= FIRST_DATE) & (values <= LAST_DATE)
    values[~good] = NO_DATE
    return values, good


def parse_forms(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Parse strings like `parse_all`, for dates in any of `Date.parsed_forms`."""
    return parse_all(of_dotted(texts))


def _cast(text: pa.Array, unit: pa.DataType) -> np.ndarray:
    """Return microseconds of strings that are written like dates, NO_DATE for 2024-02-31."""
    try:
        dates = text.cast(unit)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return np.array([NO_DATE])
        half = len(text) // 2
        return np.concatenate([_cast(text[:half], unit), _cast(text[half:], unit)])
    return dates.cast(pa.int64()).to_numpy(zero_copy_only=False)
