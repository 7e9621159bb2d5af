"""The values of one column of a block: as strings, numbers or dates, each worked out at most once.

Both the profile of a column and its parsing use them. Called by prepare_data's readers, profiles
and parsers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BLANKS = " \t"  # which are removed around strings
_TRIED = 20  # strings that are cast before all of them
NO_DATE = -(2**63)  # a missing value of a type with whole numbers of 64 bits
FIRST_DATE = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
LAST_DATE = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000_000 + 999_999
LONGEST = 1000  # characters of a category, a hashed string or a label


@dataclass(frozen=True)
class Texts:
    """A column of strings in one block.

    Attributes:
        texts: The distinct strings, in the order in which they occur first.
        codes: int32 of shape [rows]: 0 for a missing one, otherwise 1 + the index of the string.
    """

    texts: list[str]
    codes: np.ndarray

    def of(self, keep: np.ndarray) -> Texts:
        """Return the rows of a mask, and only the strings that occur in them."""
        codes = self.codes[keep]
        used, first = np.unique(codes, return_index=True)
        used = used[np.argsort(first)]
        used = used[used > 0]
        new_codes = np.zeros(len(self.texts) + 1, np.int32)  # by the present code
        new_codes[used] = np.arange(1, len(used) + 1)
        return Texts([self.texts[code - 1] for code in used.tolist()], new_codes[codes])


class Parsed(NamedTuple):
    """A column of a block.

    Attributes:
        values: Of shape [rows]: float64 or int64, with NaN or NO_DATE for a missing value and
            anything for an invalid one; or strings.
        invalid: The invalid rows, bool of shape [rows], by rule (faults.py).
    """

    values: np.ndarray | Texts
    invalid: dict[str, np.ndarray]


class Cells:
    """A column's values as its file has them. All properties except `floats` need strings.

    Args:
        column: An array of shape [rows].
        nulls: The strings that mean a missing value, and the empty one.
    """

    def __init__(self, column: pa.Array, nulls: pa.Array) -> None:
        self.column, self.nulls = column, nulls
        self._parsed: dict[Callable[[pa.Array], Any], Any] = {}

    @property
    def is_numeric(self) -> bool:
        """Whether the file has numbers or booleans."""
        return numeric(self.column.type)

    @property
    def is_temporal(self) -> bool:
        """Whether the file has dates or times."""
        return temporal(self.column.type)

    @property
    def is_plain(self) -> bool:
        """Whether the file has strings, not as a dictionary, and all are UTF-8."""
        texts = not (self.is_numeric or self.is_temporal or self.decoded[1] is not None)
        return texts and not self.wrong.any()

    @cached_property
    def floats(self) -> np.ndarray:
        """A column of a numeric type as float64 of shape [rows], NaN for a missing value."""
        kind = self.column.type
        exact = self.column if pa.types.is_float64(kind) else self.column.cast(pa.float64(), False)
        return exact.to_numpy(zero_copy_only=False)

    @cached_property
    def decoded(self) -> tuple[pa.Array, np.ndarray | None, np.ndarray]:
        """The strings without blanks around them, each row's index, and a mask of invalid UTF-8.

        For a dictionary column, each string occurs once, and the index is -1 for null. For other
        columns, there is a string for each row, and the index is None.
        """
        if isinstance(self.column, pa.DictionaryArray):
            return _distinct(self.column)
        text, wrong = text_of(self.column)
        return text, None, wrong

    @cached_property
    def texts(self) -> pa.Array:
        """The strings without blanks around them: of each row, or each once in a dictionary."""
        return self.decoded[0]

    @cached_property
    def gaps(self) -> np.ndarray:
        """Which of `texts` mean a missing value."""
        return pc.is_in(self.texts, value_set=self.nulls).to_numpy(zero_copy_only=False)

    def rewritten(self, texts: pa.Array) -> Cells:
        """Return the same values written in another way, one for each of `texts`."""
        cells = Cells(self.column, self.nulls)
        cells.decoded, cells.gaps = (texts, *self.decoded[1:]), self.gaps
        return cells

    @cached_property
    def present(self) -> pa.Array:
        """`texts` with null for a missing value."""
        return pc.if_else(pa.array(self.gaps), None, self.texts) if self.gaps.any() else self.texts

    def once(self, parse: Callable[[pa.Array], Any]) -> Any:
        """Return `parse(self.present)`; the function is called only once."""
        if parse not in self._parsed:
            self._parsed[parse] = parse(self.present)
        return self._parsed[parse]

    def by_row(self, values: np.ndarray, null: float | bool) -> np.ndarray:
        """Spread values of `texts` over the rows.

        Args:
            values: One for each of `texts`.
            null: The value of a row with null in a dictionary column.
        """
        codes = self.decoded[1]
        return values if codes is None else np.append(values, values.dtype.type(null))[codes]

    def quickly(self, parse: Callable[[pa.Array], Any], missing: float) -> Parsed | None:
        """Return a column if a function parses all of its strings; None for others."""
        if (values := self.once(parse)) is None:
            return None
        return Parsed(self.by_row(values, missing), {"encoding": self.wrong})

    def parsed(self, values: np.ndarray, missing: float, invalid: dict[str, np.ndarray]) -> Parsed:
        """Return a column from the values of its distinct strings.

        Args:
            values: One for each string of `distinct`.
            missing: The value of a row without one.
            invalid: Which strings are invalid, by rule.
        """
        codes = self.distinct[1]
        masks = {rule: np.append(mask, False)[codes] for rule, mask in invalid.items()}
        return Parsed(np.append(values, missing)[codes], {"encoding": self.wrong, **masks})

    def refused(self, rule: str, missing: float) -> Parsed:
        """Return a column whose values are all invalid, because of the type that the file has."""
        present = self.column.is_valid().to_numpy(zero_copy_only=False)
        # pandas writes a column without a value as float64
        return Parsed(np.full(len(self.column), missing), {rule: present})

    @cached_property
    def wrong(self) -> np.ndarray:
        """Bool of shape [rows]: the values that are not UTF-8; their strings are not used."""
        return self.by_row(self.decoded[2], False)

    @cached_property
    def distinct(self) -> tuple[pa.Array, np.ndarray]:
        """The different strings in the order in which they occur first, and the index of each row.

        The index is -1 for a missing value.
        """
        strings, codes = _used(self.present)
        return strings, self.by_row(codes, -1)

    @cached_property
    def words(self) -> list[str]:
        """The strings of `distinct`."""
        return self.distinct[0].to_pylist()

    def written(self) -> tuple[list[str], np.ndarray, dict[str, np.ndarray]]:
        """Return a column of any type as distinct strings, in the order in which they occur first.

        Returns:
            The strings; the index of each row, -1 if missing; and the invalid rows by rule.
        """
        if not self.is_temporal and not self.is_numeric:
            return self.words, self.distinct[1], {"encoding": self.wrong}
        invalid = {}
        if self.is_temporal:
            dates, invalid["date"] = microseconds_of(self.column)
            texts = [None if date == NO_DATE else shown_date(date) for date in dates.tolist()]
            text = pa.array(texts, pa.string())
        else:
            text = as_texts(self.column)[0].dictionary_decode()
            text = pc.if_else(pc.equal(text, ""), None, text)
        strings, codes = _used(text)
        return strings.to_pylist(), codes, invalid


def sorted_strings(column: pa.DictionaryArray) -> tuple[np.ndarray, pa.Array]:
    """Return a column of strings as codes in the strings' order.

    Returns:
        int32 of shape [rows], -1 for a missing string; and the strings that occur, each once, in
        alphabetical order.
    """
    codes = column.indices.fill_null(-1).to_numpy()
    used = np.flatnonzero(np.bincount(codes + 1, minlength=len(column.dictionary) + 1)[1:])
    strings = column.dictionary.take(pa.array(used))
    order = pc.array_sort_indices(strings).to_numpy()
    places = np.full(len(column.dictionary) + 1, -1, np.int32)
    places[used[order]] = np.arange(len(used))
    return places[codes], strings.take(pa.array(order))


def numeric(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers or booleans."""
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


def textual(kind: pa.DataType) -> bool:
    """Return whether a type is strings, or a dictionary of strings or numbers."""
    if isinstance(kind, pa.DictionaryType):
        return textual(kind.value_type) or numeric(kind.value_type)
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def as_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a column with one chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def temporal(kind: pa.DataType) -> bool:
    """Return whether values of a type are dates, with a time or not."""
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def text_of(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column of strings as strings without blanks around them.

    A value that is not UTF-8 becomes 0, which is never used.

    Args:
        column: Binary or strings of any type; null is an empty string.

    Returns:
        Strings of shape [rows], and bool of shape [rows]: the values that are not UTF-8.
    """
    if not pa.types.is_binary(column.type):
        as_bytes = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
        column = column.cast(as_bytes)
    try:
        text, wrong = column.cast(pa.string()), np.zeros(len(column), bool)
        text = text.fill_null("") if text.null_count else text
    except pa.ArrowInvalid:
        items = [_text(value) for value in column.to_pylist()]
        wrong = np.array([item is None for item in items], bool)
        text = pa.array(["0" if item is None else item for item in items], pa.string())
    return pc.utf8_trim(text, characters=BLANKS) if _has_blanks(text) else text, wrong


def _has_blanks(text: pa.StringArray) -> bool:
    """Return whether any string has a blank anywhere."""
    _, places, data = text.buffers()
    if data is None or not len(text):
        return False
    ends = np.frombuffer(places, np.int32)[text.offset : text.offset + len(text) + 1]
    letters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return any((letters == ord(blank)).any() for blank in BLANKS)


def _text(value: bytes | None) -> str | None:
    try:
        return "" if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def matches(text: pa.Array, pattern: str) -> np.ndarray:
    """Tell which strings match a regular expression; null does not."""
    matching = pc.match_substring_regex(text, pattern).fill_null(False)
    return matching.to_numpy(zero_copy_only=False)


def cast_all(text: pa.Array, type: pa.DataType) -> pa.Array | None:
    """Return strings as values of an Arrow type if all of them are; None for others.

    A few are tried before all: arrow continues after a string that is no value, and each is costly.

    Args:
        text: Strings of shape [values]; null stays null.
        type: The type.
    """
    try:
        text[:_TRIED].cast(type)
        return text.cast(type)
    except pa.ArrowInvalid:
        return None


def _used(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the different values of a column in the order in which they occur first.

    A dictionary, which many blocks may share, has values that do not occur.

    Returns:
        The values, and the index of each row; -1 for null.
    """
    if isinstance(column, pa.DictionaryArray):
        places = column.indices.dictionary_encode()
        values, indices = column.dictionary.take(places.dictionary), places.indices
    else:
        encoded = column.dictionary_encode()
        values, indices = encoded.dictionary, encoded.indices
    return values, indices.fill_null(-1).to_numpy(zero_copy_only=False)


def _distinct(column: pa.DictionaryArray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return the different strings of a dictionary column, each once however often it is.

    Returns:
        The strings as in `text_of`; each row's index, -1 for null; and a mask of the strings that
        are not UTF-8.
    """
    strings, codes = _used(column)
    text, wrong = text_of(strings.cast(pa.string()) if numeric(strings.type) else strings)
    return text, codes, wrong


def as_texts(column: pa.Array) -> tuple[pa.DictionaryArray, np.ndarray | None]:
    """Return values of any type as strings: whole numbers without a point, NaN and null as empty.

    Returns:
        The strings, and bool of shape [rows]: the rows that are not UTF-8, None if none.
    """
    distinct, codes = _used(column)
    if textual(distinct.type):
        texts, wrong = text_of(distinct)
        texts = texts.to_pylist()
    else:
        is_rounded = pa.types.is_floating(distinct.type) and not pa.types.is_float64(distinct.type)
        # to_pylist makes the float32 0.1 0.10000000149011612, which no request contains.
        values = distinct.to_numpy(False) if is_rounded else distinct.to_pylist()
        texts, wrong = list(map(number_text, values)), np.zeros(len(distinct), bool)
    bad = np.append(wrong, False)[codes]
    if (codes < 0).any():
        codes, texts = np.where(codes < 0, len(texts), codes), [*texts, ""]
    encoded = pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(texts, pa.string()))
    return encoded, bad if bad.any() else None


def number_text(value: Any) -> str:
    """Return a number, a boolean or a missing value as a string.

    A float of numpy gets the fewest digits that distinguish it from others of its type; a whole
    number gets all of them, because 65504 as float16 would otherwise be 65500.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    is_numpy = isinstance(value, np.floating)
    if not (is_numpy or isinstance(value, int | float | Decimal)):
        return str(value)  # a time of day or a duration, as a group
    exact = value.item() if is_numpy else value
    if abs(exact) < 2**63 and exact == int(exact):
        return str(int(exact))
    return str(float(str(value)) if is_numpy else value)  # numpy alone writes 1.7043004e+06


def microseconds_of(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates of a column of Arrow dates or timestamps, and which are invalid.

    A date is invalid beyond the years 1 to 9999.

    Returns:
        int64 of shape [values], microseconds since 1970, NO_DATE for a missing value or an invalid
        date; and bool of shape [values].
    """
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    gaps = column.is_null().to_numpy(zero_copy_only=False)
    ticks = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if per_second == 10**9:  # 64 bits of nanoseconds reach from 1677 to 2262
        return np.where(gaps, NO_DATE, ticks // 1000), np.zeros(len(ticks), bool)
    per_tick = 10**6 // per_second  # microseconds
    invalid = (ticks > LAST_DATE // per_tick) | (ticks < FIRST_DATE // per_tick)
    ticks = np.where(invalid, 0, ticks)  # the product of such a tick may not fit into 64 bits
    return np.where(gaps | invalid, NO_DATE, ticks * per_tick), invalid & ~gaps


def shown_date(microseconds: int) -> str:
    """Return a date in ISO 8601, without a time if that is midnight."""
    date = datetime(1970, 1, 1) + np.timedelta64(microseconds, "us").astype(object)
    text = date.isoformat(timespec="auto")
    return text.removesuffix("T00:00:00")


def shown(column: pa.Array, row: int) -> str:
    """Return a value as text for a message; empty if it is missing, or text but not UTF-8."""
    try:
        value = column[row].as_py()
    except UnicodeDecodeError:
        return ""
    except OverflowError:  # Python's years are 1 to 9999
        value = column[row : row + 1].cast(pa.string())[0].as_py()
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip(BLANKS)
    return "" if value is None or value != value else str(value)
