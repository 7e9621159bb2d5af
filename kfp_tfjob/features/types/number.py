"""Numbers: float32 in a packed row. Only this file defines what a number is."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.options.value_format import separators_of

from ..cells import Cells, Parsed, cast_all, matches
from .base import (
    FLOATS,
    MOST,
    ColumnMoments,
    ColumnStatistics,
    ColumnType,
    Read,
    Reading,
    Summary,
    Votes,
    bars_of,
    named,
)

LARGEST = float(np.finfo(np.float32).max)
_JSON = {int, float}
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
# TensorFlow replaces a smaller float32 by 0; rounding up to it begins at the second.
_SMALLEST, _ROUNDED_UP = 2.0**-126, 2.0**-126 - 2.0**-150
# Each digit can match in only one way: a string of many digits and a letter is rejected at once.
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
NUMBER = f"^{_NUMBER}$"
NAMED_NOT_FINITE = r"(?i)^[+-]?(nan|inf|infinity)$"
_WORDS = pa.array(["false", "true", "False", "True", "FALSE", "TRUE"])  # 0 and 1
# The formats of numbers with groups of thousands, named after the decimal separator.
POINT, COMMA = "1,234.5", "1.234,5"
_SEPARATORS = {POINT: (",", "."), COMMA: (".", ",")}
# The signs of amounts, and how they may be written.
_CURRENCIES = {"$": r"\$|USD", "€": "€|EUR", "£": "£|GBP", "¥": "¥|JPY", "CHF": "CHF"}
PERCENT = "%"
_MONEY = f"({'|'.join(_CURRENCIES.values())})"
# Only such strings are compared with other patterns, which costs more.
_MAY_BE_NUMBER = (
    rf"^'?[-+(\x{{2212}}]*{_MONEY}? ?[-+\x{{2212}}]?[0-9.,]"
    r"[0-9a-zA-Z .,:/+'\x{2019}\x{a0}\x{2009}\x{202f}%$€£¥()\x{2212}-]*$"
)
_BETWEEN = r"[., '\x{2019}\x{a0}\x{2009}\x{202f}]"  # groups of three digits
_DIGITS = rf"[0-9]{{1,3}}({_BETWEEN}[0-9]{{3}})+([.,][0-9]+)?|[0-9]+([.,][0-9]+)?"
_SIGN = r"[-+\x{2212}]?"
_BLANK = r"[ \x{a0}\x{2009}\x{202f}]"
_LIKE = {" ": _BLANK, "'": r"['\x{2019}]"}  # other characters for a separator of thousands
_AMOUNT = rf"{_SIGN}{_MONEY}? ?{_SIGN}({_DIGITS})[ \x{{a0}}]?({_MONEY}|%)?"
# SAP writes the minus at the end (but 50- may be an age group), and some exports a ' before it.
_OF_SAP = rf"([0-9]{{1,3}}({_BETWEEN}[0-9]{{3}})+|[0-9]+)[.,][0-9]+-"
_SEPARATED = rf"^('?{_AMOUNT}|\({_AMOUNT}\)|{_OF_SAP})$"
# The forms of numbers; 0 and 1 may be a boolean.
NUMBER_FORM, BIT, _INFINITE, _SEPARATE = "number", "0 or 1", "not finite", "separated"
# The forms of separated numbers with a sign.
_SIGNED = {sign: f"separated, with {sign}" for sign in (PERCENT, *_CURRENCIES)}
_EXACT = 2**24  # from here on float32 skips whole numbers
# With this many rows, whole numbers are hardly all different by chance. The first limit is for a
# sequence or a name like an identifier's, the second for any column.
_ROWS_OF_A_SEQUENCE, _ROWS_OF_ANY = 20, 1000
_DENSE = 3  # a sequence's range may be this many times its rows: train has only some of them
_IDENTIFIER = re.compile(r"(?i:(^|[\W_])(id|idx|index|key|no|nr|number))$|[a-z]I[dD]$")
_WHOLE = re.compile(r"^[^0-9]*[0-9]+([., '\u2019\xa0\u2009\u202f]0+)*[^0-9]*$")
is_number = re.compile(_NUMBER, re.ASCII).fullmatch
# The decimal and thousands separators that `types` may name; the usual ones come first.
_NAMED_SEPARATORS = tuple(
    (point, group) for point in ".," for group in ("", ",", ".", " ", "'") if point != group
)
_IN_BRACKETS = re.compile(r"\(.*\)\s*$")
_NO_BREAK = ("\xa0", "\u202f", "\u2009")


@dataclass(frozen=True, kw_only=True)
class NumberStatistics(ColumnMoments, ColumnStatistics):
    """The moments, and a histogram of some rows."""

    histogram: list[int] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal."""
        return self.min == self.max


class Number(ColumnType):
    """A number. In a table of numbers without missing values, the model takes it as it is."""

    kind = "number"
    schema_type = "float32"
    field = FLOATS
    raw_types = ("float64", "float32")
    raw_missing = np.nan
    sample_type = pa.float64()
    datatypes = ("FP64", "FP32", "FP16", *_INTEGERS)
    written = "a number"
    example = 0.5
    edge_type = float
    nouns = ("a number", "numbers")
    figures = ("mean", "std", "min", "max", "zeros")
    drift_bins = "edges"
    statistics = NumberStatistics

    value_type = float
    is_direct = True

    @classmethod
    def constant(cls, text: str) -> float | None:
        """Return the number."""
        return parse_number(text)

    @classmethod
    def median(cls, sample: np.ndarray) -> float:
        """Return the median; of an even number of values, the mean of the middle two."""
        return (sample[(len(sample) - 1) // 2] + sample[len(sample) // 2]) / 2

    precedence = 1
    forms = (NUMBER_FORM, BIT, _INFINITE, _SEPARATE, *_SIGNED.values(), POINT, COMMA)
    parsed_forms = (NUMBER_FORM, BIT, _INFINITE, POINT, COMMA)
    odd_forms = (_SEPARATE, *_SIGNED.values(), COMMA, POINT)
    expected = "numbers such as 1234.5"

    @classmethod
    def count(cls, cells: Cells) -> dict[str, int] | None:
        """Return the numbers of a numeric column, or of strings that all are."""
        if cells.is_numeric:
            numbers_found = cells.floats
        elif not cells.is_plain or (numbers_found := cells.once(parse_uniform)) is None:
            return None
        infinite = int((np.abs(numbers_found) > LARGEST).sum())
        numbers = int(np.count_nonzero(~np.isnan(numbers_found))) - infinite
        form = BIT if (are_bits(numbers_found) | ~np.isfinite(numbers_found)).all() else NUMBER_FORM
        return {form: numbers, _INFINITE: infinite}

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return each form of numbers with the mask of its strings; of several, the last counts.

        For example, 1 is a NUMBER_FORM and a BIT, so it is a BIT. Called by column_profile.py of
        prepare_data for the distinct strings of a block, and by `like`.
        """
        not_finite = (_INFINITE, matches(texts, NAMED_NOT_FINITE) & short)
        places = np.flatnonzero(matches(texts, _MAY_BE_NUMBER))
        if not len(places):  # a table may have thousands of columns without any number
            return [not_finite]
        candidates, is_short = texts.take(pa.array(places)), short[places]
        numbers, is_plain = parse_all(candidates)
        finite = is_plain & np.isfinite(numbers)
        separated = matches(candidates, _SEPARATED) & is_short
        signs = _signs_in(candidates, separated)
        masks = [
            (_SEPARATE, separated),
            *((_SIGNED[sign], separated & has_sign) for sign, has_sign in signs),
            *((form, matches(candidates, proof_of(form)) & is_short) for form in (POINT, COMMA)),
            (NUMBER_FORM, finite),
            (BIT, finite & are_bits(numbers)),
            (_INFINITE, is_plain & ~finite & is_short),
        ]
        spread_masks = [(form, _spread(mask, places, len(texts))) for form, mask in masks]
        return [not_finite, *spread_masks]

    @classmethod
    def like(cls, texts: pa.Array) -> np.ndarray:
        """Return bool of shape [texts]: numbers in any format, without `nan` and `inf`."""
        return super().like(texts) & ~matches(texts, NAMED_NOT_FINITE)

    @classmethod
    def is_usual(cls, votes: Votes) -> bool:
        """Return whether most values are plain numbers."""
        return votes.are_most(NUMBER_FORM, _INFINITE)

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Return whether most values are numbers, plain or in a format that is proven."""
        return cls.is_usual(votes) or (
            bool(cls.format_in(votes)) and votes.are_most(NUMBER_FORM, _INFINITE, *cls.odd_forms)
        )

    @classmethod
    def sign_of_most(cls, votes: Votes) -> tuple[str | None, str]:
        """Return the sign of nine in ten numbers: 33% and 0.33 would not be the same.

        An amount may lack the sign of the others.
        """
        total = votes.of(NUMBER_FORM, *cls.odd_forms)
        signs = {sign: votes.of(form) for sign, form in _SIGNED.items() if votes.of(form)}
        plain = total - sum(signs.values())
        of_most = {sign: rows + (plain if sign != PERCENT else 0) for sign, rows in signs.items()}
        if not signs or max(of_most.values()) == total:
            return None, ""
        sign, rows = max([*of_most.items(), ("", plain)], key=lambda sign_rows: sign_rows[1])
        if rows >= MOST * total:
            return sign, ""
        if PERCENT not in signs:
            return None, f"amounts in several currencies: {', '.join(signs)}"
        return None, "numbers with a percent sign and numbers without one"

    @classmethod
    def unclear(cls, votes: Votes) -> str:
        """Return that no value proves what the separators mean."""
        is_number = votes.are_most(NUMBER_FORM, *cls.odd_forms)
        return "numbers in another format than 1234.5" if is_number else ""

    @classmethod
    def readings_of(cls, texts: Sequence[str], votes: Votes | None = None) -> list[Reading]:
        """Return the separators by which most strings are numbers."""
        column, readings = pa.array(texts, pa.string()), {}
        has_plain = votes is not None and votes.of(NUMBER_FORM) > 0
        for point, group in _NAMED_SEPARATORS:
            plain = without_signs(column, group, point)
            good = matches(plain, NUMBER)
            numbers = tuple(pc.if_else(pa.array(good), plain, None).to_pylist())
            # Without a group or a decimal place, several separators have the same meaning. Prefer
            # the point between thousands, because it also reads the column's plain numbers: 1.234
            # in a column with 1,5.
            meaning = tuple(map(_value, numbers))
            if meaning not in readings or (
                has_plain and (point, group) == _SEPARATORS[COMMA][::-1]
            ):
                readings[meaning] = good.sum(), point, group, numbers
        most = max((count for count, *_ in readings.values()), default=0)
        return [
            Reading({"number": _named_separators(point, group)}, _meaning(texts, numbers))
            for count, point, group, numbers in readings.values()
            if count == most and 2 * count >= len(texts) > 0
        ]

    @classmethod
    def oddity_of(cls, texts: Sequence[str]) -> tuple[str, str]:
        """Describe strings with parentheses, or with characters that look like others."""
        if bracketed := next(filter(_IN_BRACKETS.match, texts), ""):
            plain = f"-{bracketed.strip('()')}"
            return "amounts in parentheses", f"write {plain} instead of {bracketed}"
        if any("\u2212" in text for text in texts):
            return "numbers with the minus sign U+2212", ""
        characters = set("".join(texts))
        if blank := next((character for character in _NO_BREAK if character in characters), ""):
            return f"numbers with the no-break space U+{ord(blank):04X}", ""
        return "", ""

    @classmethod
    def may_be_proven(cls, texts: Sequence[str]) -> bool:
        """Return whether a value with both separators would prove the meaning of the separators."""
        column = pa.array(texts, pa.string())
        return any(matches(ungrouped(column, format), NUMBER).all() for format in _SEPARATORS)

    @classmethod
    def format_in(cls, votes: Votes) -> str:
        """Return the separators' format if a value with both proves it and none contradicts it."""
        if bool(votes.of(POINT)) == bool(votes.of(COMMA)):
            return ""
        if votes.of(POINT):
            return POINT  # plain numbers mean the same in it
        return "" if cls.is_usual(votes) else COMMA

    arrow_type = pa.float64()
    repeats = False

    @classmethod
    def plain(cls, texts: pa.Array, written: str, sign: str | None = None) -> pa.Array:
        """Return numbers in a format as plain ones."""
        named = separators_of(written)
        return without_signs(texts, *named, sign) if named else ungrouped(texts, written)

    @classmethod
    def parse(cls, cells: Cells) -> Parsed:
        """Return float64, as in requests; a number must fit into float32."""
        if cells.is_temporal:
            return cells.refused("text", np.nan)
        if cells.is_numeric:
            large = np.abs(cells.floats) > LARGEST
            return Parsed(np.where(large, 0, cells.floats), {"not finite": large})
        if quick := cells.quickly(parse_uniform, np.nan):
            return quick
        texts = cells.distinct[0]
        numbers, good = parse_all(texts)
        infinite = matches(texts, NAMED_NOT_FINITE) | np.isinf(numbers)
        word = pc.index_in(texts, value_set=_WORDS).fill_null(-1).to_numpy(zero_copy_only=False)
        numbers[infinite], numbers[word >= 0] = 0, word[word >= 0] % 2
        wrong = {"not finite": infinite, "text": ~(good | infinite | (word >= 0))}
        return cells.parsed(numbers, np.nan, wrong)

    @classmethod
    def are_valid(cls, column: pa.Array) -> bool:
        """Return whether all numbers fit into float32."""
        numbers = column.to_numpy(zero_copy_only=False)
        return int((np.abs(numbers) <= LARGEST).sum()) == len(numbers) - column.null_count

    @property
    def group(self) -> Hashable:
        """Apart from others: columns that the model takes as they are."""
        return self.missing is None

    @property
    def raw_type(self) -> str:
        """float32 if the model takes it as it is, otherwise float64."""
        return self.raw_types[self.missing is None]

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the values as float32 rounds them, without subnormal numbers."""
        import tensorflow as tf

        if values.dtype == tf.float32:
            return [values]
        size = tf.abs(values)
        normal = tf.where(size < _SMALLEST, tf.sign(values) * _SMALLEST, values)
        return [tf.where(size < _ROUNDED_UP, np.float64(0), normal)]

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return float64, NaN for a missing value; a model has float32, so none may be larger."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
            numbers = values.astype(np.float64)
            return numbers, _too_large(numbers)
        types = set(map(type, values))
        if not types <= {*_JSON, type(None)}:
            wrong = [
                (row, f"{named(value)} instead of a number")
                for row, value in enumerate(values)
                if value is not None and type(value) not in _JSON
            ]
            return np.zeros(0), wrong
        try:
            plain = [np.nan if value is None else value for value in values]
            numbers = np.array(plain if type(None) in types else values, np.float64)
        except OverflowError:  # a whole number of Python has any size
            numbers = np.array([np.inf if abs(value or 0) > LARGEST else 0 for value in values])
        return numbers, _too_large(numbers)

    def usual(self, column: ColumnStatistics | None = None) -> float:
        """Return the fill value, or the mean without a rule for missing values."""
        if self.missing:
            return float(self.missing.value or 0)
        return column.mean if isinstance(column, NumberStatistics) else 0.0

    def describe(self, column: Summary) -> NumberStatistics:
        """Return the moments and a histogram."""
        moments = column.moments
        bars = bars_of(column.sample.astype(np.float64), moments.min, moments.max)
        return NumberStatistics(**vars(moments), histogram=bars)

    @classmethod
    def warnings(
        cls, columns: Mapping[str, ColumnStatistics], samples: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Return which columns float32 rounds, and which look like identifiers."""
        warnings = []
        large = [
            name
            for name, column in columns.items()
            if isinstance(column, NumberStatistics)
            and (max(-column.min, column.max) > _EXACT or rounded(column))
        ]
        if large:
            warnings.append(
                "values are rounded to float32 (7 digits); an identifier is not a feature:"
                f" {listed(large, 10)}; drop it with data_options.drop, or subtract a constant"
            )
        alike = [
            name
            for name, values in samples.items()
            if not np.isnan(values).any() and _identifies(name, values.astype(np.float64))
        ]
        if alike:
            warnings.append(
                "a different whole number in every row, like an identifier or a row number:"
                f" {listed(alike, 10)}; if it does not help with new rows, drop it with"
                f" {setting('data_options.drop', alike[:10])}"
            )
        return warnings

    @classmethod
    def shown(cls, value: Any) -> str:
        """Return the value with seven digits."""
        return f"{value:.7g}"


def _too_large(values: np.ndarray) -> list[tuple[int, str]]:
    rows = np.flatnonzero(np.abs(values) > LARGEST)  # infinity is one of them
    return [(int(row), "too large for a float32") for row in rows]


def _identifies(name: str, values: np.ndarray) -> bool:
    """Return whether a feature looks like an identifier of the row and not like a property.

    Args:
        name: The name of the feature.
        values: float64 of shape [rows], a sample.
    """
    rows = len(values)
    if rows < _ROWS_OF_A_SEQUENCE or (values != np.floor(values)).any():
        return False
    width = values.max() - values.min()
    if width < rows - 1:
        return False  # not all of them can differ
    if rows < _ROWS_OF_ANY and width >= _DENSE * rows and not _IDENTIFIER.search(name):
        return False
    return len(np.unique(values)) == rows


def are_bits(numbers: np.ndarray) -> np.ndarray:
    """Tell which numbers, as float32, are 0 or 1."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32, copy=False)
    return (single == 0) | (single == 1)


def _spread(mask: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of some values as one of `count` values."""
    mask_of_all = np.zeros(count, bool)
    mask_of_all[at[mask]] = True
    return mask_of_all


def parse_number(text: str) -> float | None:
    """Return the value of a number in text; None if it is not one that float32 can hold."""
    return value if is_number(text) and abs(value := float(text)) <= LARGEST else None


def are_formatted(texts: Sequence[str]) -> bool:
    """Return whether strings look like numbers, and not all are plain ones: 7.263,37 EUR."""
    strings = pa.array(texts, pa.string())
    return bool(matches(strings, _SEPARATED).all()) and not all(map(is_number, texts))


def is_whole(text: str) -> bool:
    """Return whether a string is a whole number for any separators: 40%, 10,000 or 7."""
    return bool(_WHOLE.search(text))


def _value(text: str | None) -> float | None:
    return None if text is None else float(text)


def _named_separators(point: str, group: str) -> dict[str, str]:
    return {"decimal": point} | ({"thousands": group} if group else {})


def _meaning(texts: Sequence[str], numbers: Sequence[str | None]) -> str:
    """Return a string that is no plain number, and the number that it is by a format."""
    pairs = [
        (text, number) for text, number in zip(texts, numbers, strict=True) if number is not None
    ]
    text, number = next((pair for pair in pairs if not is_number(pair[0])), pairs[0])
    return f"{text!r} as {number_as_text(number)}"


def number_as_text(text: str) -> str:
    """Return the same text for every spelling of a number: all digits of a whole one."""
    value = float(text)
    if math.isinf(value) or not value.is_integer():
        return text if math.isinf(value) else repr(value)
    try:
        exact = Decimal(text)
    except InvalidOperation:  # an exponent of 19 digits
        return repr(value)
    return str(int(exact)) if exact == exact.to_integral_value() else repr(value)


def proof_of(format: str) -> str:
    """Return the pattern of a number with both separators, which no other format can have."""
    group, point = map(re.escape, _SEPARATORS[format])
    return rf"^[+-]?[1-9][0-9]{{0,2}}({group}[0-9]{{3}})+{point}[0-9]+$"


def ungrouped(text: pa.Array, format: str) -> pa.Array:
    """Return numbers of a format as plain ones; a string that has another meaning becomes none."""
    group, point = _SEPARATORS[format]
    text = _with_sign_first(text)
    pattern = rf"^[+-]?([1-9][0-9]{{0,2}}(\{group}[0-9]{{3}})+|[0-9]+)(\{point}[0-9]*)?$"
    plain = pc.replace_substring(pc.replace_substring(text, group, ""), point, ".")
    # 12.50 would be read as a number, but is none where the point separates thousands.
    marked = pc.binary_join_element_wise(text, "?", "") if format == COMMA else text
    return pc.if_else(pc.match_substring_regex(text, pattern), plain, marked)


def without_signs(text: pa.Array, group: str, point: str, sign: str | None = None) -> pa.Array:
    """Return numbers with these separators as plain ones, without currency and percent signs.

    Args:
        text: Strings of shape [values]; one that is written in another way becomes no number.
        group: The character between thousands; empty for none.
        point: The decimal separator.
        sign: The only sign that numbers may have, and percentages must have; None for any.
    """
    text = _with_sign_first(text)
    groups = _LIKE.get(group, re.escape(group))
    grouped = rf"[1-9][0-9]{{0,2}}({groups}[0-9]{{3}})+|" if group else ""
    digits = rf"(({grouped}[0-9]+)(\{point}[0-9]*)?|\{point}[0-9]+)"
    money = f"({_CURRENCIES[sign]})" if sign in _CURRENCIES else _MONEY
    before, after = rf"({money}{_BLANK}?)?", rf"({_BLANK}?({money}|%))?"
    if sign is not None:
        before = before if sign in _CURRENCIES else ""
        after = rf"{_BLANK}?%" if sign == PERCENT else rf"({_BLANK}?{money})?" if sign else ""
    pattern = rf"^{_SIGN} ?{before}{_SIGN}{digits}{after}$"
    plain = pc.replace_substring_regex(text, rf"{_MONEY}|%|{_BLANK}", "")
    plain = pc.replace_substring_regex(plain, groups, "") if group else plain
    plain = pc.replace_substring(pc.replace_substring(plain, point, "."), "\u2212", "-")
    none = pc.binary_join_element_wise(text, "?", "")  # 12.50 is a number only where the point is
    return pc.if_else(pc.match_substring_regex(text, pattern), plain, none)


def _with_sign_first(text: pa.Array) -> pa.Array:
    """Return numbers such as 5- and '-5 as -5; other strings as they are."""
    text = pc.replace_substring_regex(text, rf"^'({_SIGN}[^'+-]*)$", r"\1")
    return pc.replace_substring_regex(text, r"^([^+-]*[0-9][^+-]*)-$", r"-\1")


def _signs_in(texts: pa.Array, mask: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the signs of amounts that some strings have, and bool of shape [texts]: which."""
    places = np.flatnonzero(mask)
    some = texts.take(pa.array(places))
    for sign, pattern in {PERCENT: PERCENT, **_CURRENCIES}.items():
        if (has := matches(some, pattern)).any():
            yield sign, _spread(has, places, len(texts))


def parse_uniform(text: pa.Array) -> np.ndarray | None:
    """Return strings as numbers if all of them are numbers that float32 can hold; None for others.

    Args:
        text: Strings of shape [values]; null is a missing value.

    Returns:
        float64 of shape [values], NaN for a missing value.
    """
    numbers = cast_all(text, pa.float64())
    if numbers is None or not Number.are_valid(numbers):
        return None
    return numbers.to_numpy(zero_copy_only=False)


def parse_all(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return strings as numbers, and a mask of the strings that are numbers of any size.

    Args:
        text: Strings of shape [values], without a null.

    Returns:
        float64 of shape [values], 0 if it is not a number, infinite if it is too large; and bool.
    """
    good = matches(text, NUMBER)
    numbers = pc.if_else(pa.array(good), text, "0").cast(pa.float64())
    numbers = numbers.to_numpy(zero_copy_only=False)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.inf), good


def rounded(column: ColumnMoments) -> bool:
    """Return whether float32 rounds values by more than a hundredth of their deviation."""
    largest = np.float32(max(-column.min, column.max))
    return bool(0 < column.std < 100 * np.spacing(largest))
