"""Codes the columns of a table as the numbers that a model sees, for training.

schema.json declares the coding: `features` has the columns, and `coding` what was learned from the
training rows. It is executed twice. Here, numpy codes rows of shards; raw_columns.py codes columns
inside the exported model. A test holds both equal, bit for bit.

A packed row has the numbers first and the codes after them, each in the order of the columns:

    number     value, then 1 if it was missing where `indicator` is set
    boolean    0 or 1, then the same
    date       year, month, day, weekday (0 is Monday), hour, seconds since the first one, the same
    category   0 for an unknown or rare text, 1 for a gap, 2 + place in the vocabulary
    text       0 for a gap, 1 + bin
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kfp_tfjob.storage.errors import DataError, Problem

NUMBER, BOOLEAN, DATE, CATEGORY, TEXT = "number", "boolean", "date", "category", "text"
TYPES = {NUMBER: "float32", BOOLEAN: BOOLEAN, DATE: DATE, CATEGORY: CATEGORY, TEXT: TEXT}
KINDS = {name: kind for kind, name in TYPES.items()}  # by the type in schema.json

NO_DATE = -(2**63)  # a gap in a column of dates
# The literals of a boolean, in any case, for training, the exported model and the server.
TRUE_TEXTS = ("true", "t", "yes", "y", "on", "1", "1.0")  # pandas writes 1.0 beside missing values
FALSE_TEXTS = ("false", "f", "no", "n", "off", "0", "0.0")
DATE_PARTS = ("year", "month", "day", "weekday", "hour", "seconds")
UNKNOWN, GAP, FIRST = 0, 1, 2  # codes of a category
MOST_CODES = 2**24  # float32 has all whole numbers up to here

SECOND = 1_000_000  # microseconds
_DAY = 86_400  # seconds
_SMALLEST = np.float32(2**-126)  # the smallest float32 of full precision


@dataclass(frozen=True)
class Missing:
    """What happens to a gap.

    Attributes:
        rule: `median`, `mean`, `most_frequent`, `constant`, `fail` or `drop`.
        value: What stands for a gap: a number, 0 or 1 of a boolean, microseconds of a date. None
            if a gap is an error.
        indicator: Whether the packed row tells gaps from values.
    """

    rule: str
    value: float | int | None
    indicator: bool = False


@dataclass(frozen=True)
class Coded:
    """One feature and its coding.

    Attributes:
        name: The column.
        kind: One of KINDS' values.
        missing: Of a number, boolean or date.
        origin: Of a date: the first one of the training rows, in microseconds since 1970, UTC.
        dictionary: Of a category: its texts by the code of the shards, which starts at 1.
        vocabulary: Of a category: the texts that have a code of their own.
        bins: Of a text.
    """

    name: str
    kind: str
    missing: Missing | None = None
    origin: int = 0
    dictionary: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    bins: int = 0

    @property
    def size(self) -> int:
        """The number of codes; 0 for a kind that becomes numbers."""
        if self.kind == CATEGORY:
            return FIRST + len(self.vocabulary)
        return 1 + self.bins if self.kind == TEXT else 0

    @property
    def packed_names(self) -> tuple[str, ...]:
        """The names of its columns in a packed row."""
        parts = [self.name]
        if self.kind == DATE:
            parts = [f"{self.name}.{part}" for part in DATE_PARTS]
        if self.missing and self.missing.indicator:
            parts.append(f"{self.name}.missing")
        return tuple(parts)


@dataclass(frozen=True)
class Column:
    """The place of a feature in a packed row.

    Attributes:
        name: The column of the table.
        kind: `number`, `boolean`, `date`, `category` or `text`.
        start: Its first packed column.
        width: Number of its packed columns.
        size: Number of its codes, for an embedding or a one-hot layer; 0 for numbers.
    """

    name: str
    kind: str
    start: int
    width: int
    size: int


@dataclass(frozen=True)
class Coding:
    """The coding of a table.

    Args:
        features: The features, in the order of the table.
    """

    features: tuple[Coded, ...]
    _plan: _Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plan", _Plan.of(self.features))

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> Coding:
        """Return the coding of a schema.json.

        Before codec 3, a table of numbers without gaps had no key `coding`.

        Raises:
            ValueError, KeyError, TypeError: It is not one.
        """
        listed = schema["features"]
        learned = schema.get("coding") or [{}] * len(listed)
        if len(learned) != len(listed):
            raise ValueError(f"{len(listed)} features with {len(learned)} codings")
        return cls(tuple(map(_coded, listed, learned)))

    def to_schema(self) -> dict[str, list[dict[str, Any]]]:
        """Return the keys `features` and `coding` of schema.json."""
        return {
            "features": [{"name": item.name, "type": TYPES[item.kind]} for item in self.features],
            "coding": [_learned(item) for item in self.features],
        }

    @cached_property
    def is_identity(self) -> bool:
        """Whether packed rows are raw rows: there are only numbers, and no rule for gaps."""
        return all(item.kind == NUMBER and item.missing is None for item in self.features)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The features in the order of the table."""
        return self._plan.columns

    @property
    def names(self) -> tuple[str, ...]:
        """The packed columns, in their order."""
        return self._plan.names

    @property
    def width(self) -> int:
        """The number of packed columns."""
        return len(self._plan.names)

    @property
    def numbers(self) -> int:
        """The number of packed columns before the first code."""
        return self._plan.numbers

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The number of floats, codes and dates in a record of a shard."""
        plan = self._plan
        return len(plan.float_features), len(plan.code_features), len(plan.date_features)

    def pack(self, floats: np.ndarray, codes: np.ndarray, dates: np.ndarray) -> np.ndarray:
        """Return the packed rows.

        Args:
            floats: (rows, n) float32, the numbers and booleans of the shards; NaN is a gap.
            codes: (rows, m) int64, the categories and texts of the shards.
            dates: (rows, k) int64, microseconds since 1970, UTC; NO_DATE is a gap.

        Returns:
            (rows, width) float32; `floats` itself if packed rows are raw rows.

        Raises:
            DataError: A column that must have no gap has one, or a code is not in its dictionary.
        """
        if self.is_identity:
            return floats
        plan = self._plan
        packed = np.empty((len(floats), self.width), np.float32)
        gaps = np.isnan(floats)
        self._refuse_gaps(plan.float_features, gaps)
        filled = np.where(gaps, plan.float_values, floats)
        # TensorFlow does the same, and makes no difference between 0.0 and -0.0 either.
        packed[:, plan.float_at] = np.where(np.abs(filled) < _SMALLEST, 0, filled)
        missing = dates == NO_DATE
        self._refuse_gaps(plan.date_features, missing)
        *parts, whole, rest = date_parts(np.where(missing, plan.date_values, dates), plan.origins)
        # In float64, like the exported model does; it has every whole second.
        for place, part in enumerate([*parts, whole.astype(float) + rest.astype(float) / SECOND]):
            packed[:, plan.date_at + place] = part
        packed[:, plan.indicator_at] = np.hstack([gaps, missing])[:, plan.indicated]
        for place, (coded, table) in enumerate(zip(plan.code_features, plan.tables, strict=True)):
            found = codes[:, place]
            most = coded.bins if table is None else len(table) - 1
            if len(found) and not 0 <= int(found.min()) <= int(found.max()) <= most:
                raise _foreign_code(coded.name, found, most)
            packed[:, self.numbers + place] = found if table is None else table[found]
        return packed

    def _refuse_gaps(self, features: tuple[Coded, ...], gaps: np.ndarray) -> None:
        """Raise for a gap that no value stands for; `gaps` is (rows, features) bool."""
        if not gaps.any():
            return
        DataError.raise_if(
            gap_refused(item.name)
            for item, some in zip(features, np.asarray(gaps.any(axis=0)), strict=True)
            if some and (item.missing is None or item.missing.value is None)
        )


@dataclass(frozen=True)
class _Plan:
    """Where everything goes; arrays that are used with each batch."""

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    numbers: int
    float_features: tuple[Coded, ...]
    float_at: np.ndarray
    float_values: np.ndarray
    date_features: tuple[Coded, ...]
    date_at: np.ndarray
    date_values: np.ndarray
    origins: np.ndarray
    indicator_at: np.ndarray
    indicated: np.ndarray
    code_features: tuple[Coded, ...]
    tables: tuple[np.ndarray | None, ...]

    @classmethod
    def of(cls, features: tuple[Coded, ...]) -> _Plan:
        numeric = [item for item in features if not item.size]
        code_features = tuple(item for item in features if item.size)
        ordered = [*numeric, *code_features]
        ends = np.cumsum([0, *(len(item.packed_names) for item in ordered)])
        starts = {item.name: int(at) for item, at in zip(ordered, ends[:-1], strict=True)}
        floats = tuple(item for item in numeric if item.kind != DATE)
        dates = tuple(item for item in numeric if item.kind == DATE)
        gapped = [item for item in (*floats, *dates) if item.missing and item.missing.indicator]
        return cls(
            columns=tuple(
                Column(item.name, item.kind, starts[item.name], len(item.packed_names), item.size)
                for item in features
            ),
            names=tuple(name for item in ordered for name in item.packed_names),
            numbers=int(ends[len(numeric)]),
            float_features=floats,
            float_at=np.array([starts[item.name] for item in floats], np.int64),
            float_values=np.array([_stand_in(item, np.nan) for item in floats], np.float32),
            date_features=dates,
            date_at=np.array([starts[item.name] for item in dates], np.int64),
            date_values=np.array([_stand_in(item, 0) for item in dates], np.int64),
            origins=np.array([item.origin for item in dates], np.int64),
            indicator_at=np.array(
                [starts[item.name] + len(item.packed_names) - 1 for item in gapped], np.int64
            ),
            indicated=np.array([(*floats, *dates).index(item) for item in gapped], np.int64),
            code_features=code_features,
            tables=tuple(_table(item) for item in code_features),
        )


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
    days = seconds // _DAY
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
        (seconds - days * _DAY) // 3600,
        seconds - first,
        (microseconds - seconds * SECOND) - (origins - first * SECOND),
    )


def gap_refused(name: str) -> Problem:
    """Describe a gap in a column whose rule is `fail`."""
    return Problem(
        f"the column {name!r} has a gap, which its rule `fail` forbids",
        expected="a value in every row",
        fix=f"fill it in, or train with a different rule for {name!r} in data_options.missing",
    )


def _foreign_code(name: str, found: np.ndarray, most: int) -> DataError:
    return DataError(
        Problem(
            f"a code of the column {name!r} is not in its dictionary",
            received=f"codes from {found.min()} to {found.max()}",
            expected=f"codes from 0 to {most} (schema.json)",
            fix="prepare the dataset again",
        )
    )


def _stand_in(feature: Coded, none: float) -> float:
    value = None if feature.missing is None else feature.missing.value
    return none if value is None else value


def _table(feature: Coded) -> np.ndarray | None:
    """Return (1 + dictionary,) float32, the packed code of each code; None if they are equal."""
    if feature.kind == TEXT:
        return None
    places = {text: FIRST + place for place, text in enumerate(feature.vocabulary)}
    codes = (places.get(text, UNKNOWN) for text in feature.dictionary)
    return np.array([GAP, *codes], np.float32)


def _coded(feature: Mapping[str, Any], learned: Mapping[str, Any]) -> Coded:
    name, kind = str(feature["name"]), KINDS[feature["type"]]
    given: dict[str, Any] = {}
    if kind == CATEGORY:
        given = {key: tuple(map(str, learned[key])) for key in ("dictionary", "vocabulary")}
    elif kind == TEXT:
        given = {"bins": int(learned["bins"])}
    elif "missing" in learned:
        missing = learned["missing"]
        value, whole = missing["value"], int if kind in (BOOLEAN, DATE) else float
        value = None if value is None else whole(value)
        indicator = bool(missing.get("indicator", False))
        given = {"missing": Missing(str(missing["rule"]), value, indicator)}
    if kind == DATE:
        given["origin"] = int(learned["origin"])
    if kind in (BOOLEAN, DATE) and "missing" not in given:
        raise ValueError(f"the {kind} {name!r} has no rule for gaps")
    found = Coded(name, kind, **given)
    if found.size > MOST_CODES or (kind == TEXT and found.bins < 1):
        raise ValueError(f"{name!r} has {found.size:,} codes; expected 2 to {MOST_CODES:,}")
    if "" in found.vocabulary or len(set(found.vocabulary)) < len(found.vocabulary):
        raise ValueError(f"the vocabulary of {name!r} has an empty text, or one twice")
    return found


def _learned(feature: Coded) -> dict[str, Any]:
    if feature.kind == CATEGORY:
        return {"dictionary": list(feature.dictionary), "vocabulary": list(feature.vocabulary)}
    if feature.kind == TEXT:
        return {"bins": feature.bins}
    missing = feature.missing
    found: dict[str, Any] = {}
    if missing:
        found["missing"] = {
            "rule": missing.rule,
            "value": missing.value,
            "indicator": missing.indicator,
        }
    return found | ({"origin": feature.origin} if feature.kind == DATE else {})
