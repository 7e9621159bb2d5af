"""Reads dates and times in ISO 8601 as microseconds since 1970, UTC.

A text is YYYY-MM-DD, with or without a time: a blank or T, then hh, hh:mm, hh:mm:ss or a fraction
of up to nine digits, of which six count. It may end with Z or the distance from UTC, as in +02:00;
a time without either is in UTC. The years are 1 to 9999. Only this module defines what a date is.
"""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.features.coding import NO_DATE

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_CLOCK = r"[0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?)?"
_ISO = rf"{_DAY}([ T]{_CLOCK}{_ZONE}?)?"
_DOTTED = rf"^[0-9]{{1,2}}\.[0-9]{{1,2}}\.[0-9]{{4}}([ T]{_CLOCK}{_ZONE}?)?$"
_ZONED = rf"{_ZONE}$"
_FIRST = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_LAST = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
_TRIED = 20  # texts, before all: arrow continues after a text that is no date, and each is costly
UNIT = pa.timestamp("us")
DAY_FIRST = "31.12.2024"  # the name of the format that `of_dotted` reads


def parse(text: str) -> int | None:
    """Return the microseconds of one date; None if it is not one."""
    found, good = parse_all(pa.array([text]))
    return int(found[0]) if good[0] else None


def shown(microseconds: int) -> str:
    """Return a date in ISO 8601, without a time if that is midnight."""
    date = datetime(1970, 1, 1) + np.timedelta64(microseconds, "us").astype(object)
    text = date.isoformat(timespec="auto")
    return text.removesuffix("T00:00:00")


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


def is_dotted(text: pa.Array) -> np.ndarray:
    """Tell which texts are written like 8.4.2022."""
    return pc.match_substring_regex(text, _DOTTED).to_numpy(zero_copy_only=False)


def parse_quickly(text: pa.Array) -> np.ndarray | None:
    """Return the dates of texts that are all dates of one form; None for others.

    Args:
        text: Strings of shape [values]; null is a gap.

    Returns:
        int64 of shape [values], NO_DATE for a gap.
    """
    try:
        text[:_TRIED].cast(UNIT)
        found = text.cast(UNIT)
    except pa.ArrowInvalid:
        return None
    values = found.cast(pa.int64()).fill_null(NO_DATE).to_numpy(zero_copy_only=False)
    return values if _in_range(values, found.null_count).all() else None


def parse_all(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates of texts, and which texts are dates.

    Args:
        text: Strings of shape [values]; better each only once.

    Returns:
        int64 of shape [values], NO_DATE if it is not a date; and bool of shape [values].
    """
    values = np.full(len(text), NO_DATE, np.int64)
    good = matches(text)
    if not good.any():
        return values, good
    at = np.flatnonzero(good)
    found = text.take(pa.array(at))
    # More digits than those of microseconds do not fit into arrow's type for all years.
    found = pc.replace_substring_regex(found, r"(\.[0-9]{6})[0-9]+", r"\1")
    zoned = pc.match_substring_regex(found, rf":?[0-9]{{2}}{_ZONED}")
    # The end of a plain date, as in 2024-12-31, is no distance from UTC.
    zoned = pc.and_(zoned, pc.greater(pc.utf8_length(found), 10))
    zoned = zoned.to_numpy(zero_copy_only=False)
    for mask, unit in ((zoned, pa.timestamp("us", "UTC")), (~zoned, UNIT)):
        places = at[mask]
        values[places] = _cast(found.filter(pa.array(mask)), unit)
    good[at] = _in_range(values[at], 0)
    values[~good] = NO_DATE
    return values, good


def matches(text: pa.Array) -> np.ndarray:
    """Tell which texts are written like a date; 2024-02-31 is, too. Null is not."""
    return (
        pc.match_substring_regex(text, f"^{_ISO}$").fill_null(False).to_numpy(zero_copy_only=False)
    )


def of_typed(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates of a typed column, and which are beyond the years 1 to 9999.

    Returns:
        int64 of shape [values], NO_DATE for a gap; and bool of shape [values].
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        per_second = 0
        column = column.cast(pa.int32()).cast(pa.int64())
    else:
        per_second = 10**3  # date64
        column = column.cast(pa.int64())
    gaps = column.is_null().to_numpy(zero_copy_only=False)
    whole = column.fill_null(0).to_numpy(zero_copy_only=False)
    unit = 86_400_000_000 if not per_second else 1_000_000 // per_second or 1
    beyond = (whole > _LAST // unit) | (whole < _FIRST // unit)
    if per_second == 10**9:
        whole, beyond = whole // 1000, np.zeros(len(whole), bool)  # they are 1677 to 2262
    values = np.where(beyond, 0, whole) * unit
    return np.where(gaps | beyond, NO_DATE, values), beyond & ~gaps


def in_years(column: pa.TimestampArray) -> bool:
    """Tell whether the dates of a column of the type UNIT are of the years 1 to 9999."""
    found = pc.min_max(column.cast(pa.int64())).as_py()
    return found["min"] is None or _FIRST <= found["min"] <= found["max"] <= _LAST


def _cast(text: pa.Array, unit: pa.DataType) -> np.ndarray:
    """Return microseconds of texts that are written like dates, NO_DATE for 2024-02-31."""
    try:
        found = text.cast(unit)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return np.array([NO_DATE])
        half = len(text) // 2
        return np.concatenate([_cast(text[:half], unit), _cast(text[half:], unit)])
    return found.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _in_range(values: np.ndarray, gaps: int) -> np.ndarray:
    good = (values >= _FIRST) & (values <= _LAST)
    return good | (values == NO_DATE) if gaps else good
