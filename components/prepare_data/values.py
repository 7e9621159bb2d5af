"""Converts text to float32 and to labels; only this module defines what a number is."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.faults import BlockFaults

BLANKS = " \t"
# Each digit can match in only one way: a text of many digits and a letter is refused at once.
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
NUMBER = f"^{_NUMBER}$"
LONGEST_LABEL = 1000  # characters
_NOT_FINITE = r"(?i)[+-]?(nan|inf|infinity)"
NAMED_NOT_FINITE = f"^{_NOT_FINITE}$"
_BOOLS = pa.array(["true", "True", "TRUE", "false", "False", "FALSE"])
_TRUE = _BOOLS[:3]
# The formats of numbers with groups of thousands, named after the decimal separator.
POINT, COMMA = "1,234.5", "1.234,5"
_SEPARATORS = {POINT: (",", "."), COMMA: (".", ",")}
LARGEST = float(np.finfo(np.float32).max)
# Arrow continues after a text that is no number, and each is costly: a few are tried first.
_TRIED = 20
_is_number = re.compile(_NUMBER, re.ASCII).fullmatch


def number(text: str) -> float | None:
    """Return the value of a number in text; None when it is not one that float32 can hold."""
    return value if _is_number(text) and abs(value := float(text)) <= LARGEST else None


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
    """Return numbers of a format as plain ones; a text that has another meaning becomes none."""
    group, point = _SEPARATORS[format]
    pattern = rf"^[+-]?([1-9][0-9]{{0,2}}(\{group}[0-9]{{3}})+|[0-9]+)(\{point}[0-9]*)?$"
    plain = pc.replace_substring(pc.replace_substring(text, group, ""), point, ".")
    # 12.50 would be read as a number, but is none where the point separates thousands.
    other = pc.binary_join_element_wise(text, "?", "") if format == COMMA else text
    return pc.if_else(pc.match_substring_regex(text, pattern), plain, other)


def plain_number(text: str) -> bool:
    """Tell whether a text is written as a finite number."""
    return bool(_is_number(text))


def decode(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a binary column as text without blanks around it, and which values are not UTF-8.

    A value that is not UTF-8 becomes 0, which is never used.
    """
    try:
        text, wrong = column.cast(pa.string()), np.zeros(len(column), bool)
        text = text.fill_null("") if text.null_count else text
    except pa.ArrowInvalid:
        items = [_text_of(value) for value in column.to_pylist()]
        wrong = np.array([item is None for item in items], bool)
        text = pa.array(["0" if item is None else item for item in items], pa.string())
    return pc.utf8_trim(text, characters=BLANKS) if _has_blanks(text) else text, wrong


def _has_blanks(text: pa.StringArray) -> bool:
    """Tell whether any text has a blank anywhere."""
    _, places, data = text.buffers()
    if data is None or not len(text):
        return False
    ends = np.frombuffer(places, np.int32)[text.offset : text.offset + len(text) + 1]
    letters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return any((letters == ord(blank)).any() for blank in BLANKS)


def _text_of(value: bytes | None) -> str | None:
    try:
        return "" if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def shown(value: pa.Scalar) -> str:
    """Return a binary value for a message."""
    return (value.as_py() or b"").decode(errors="replace").strip(BLANKS)


def strings(column: pa.Array, name: str, faults: BlockFaults) -> pa.Array:
    """Return a binary column as text without blanks around it; mark values that are not UTF-8."""
    text, wrong = decode(column)
    faults.mark(wrong, "encoding", name, lambda i: shown(column[i]))
    return text


def numbers(
    text: pa.Array, nulls: pa.Array, kind: type[np.floating] = np.float32
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return texts as numbers, and which texts are not numbers.

    Args:
        text: Strings without blanks around them, of shape [values].
        nulls: The texts that mean a missing value.
        kind: float32 or float64; a number must fit into float32 in any case.

    Returns:
        Numbers of shape [values], 0 if not a number; and for each fault, bool of shape [values].
    """
    missing = pc.is_in(text, value_set=nulls)
    bools = pc.is_in(text, value_set=_BOOLS)
    numeric = pc.and_not(pc.match_substring_regex(text, NUMBER), missing)
    values = pc.if_else(numeric, text, "0").cast(pa.from_numpy_dtype(kind))
    values = values.to_numpy(zero_copy_only=False).copy()
    values[pc.is_in(text, value_set=_TRUE).to_numpy(zero_copy_only=False)] = 1
    absent = missing.to_numpy(zero_copy_only=False)
    infinite = pc.match_substring_regex(text, NAMED_NOT_FINITE).to_numpy(zero_copy_only=False)
    infinite = (infinite & ~absent) | ~(np.abs(values) <= LARGEST)
    known = pc.or_(numeric, bools).to_numpy(zero_copy_only=False) | absent | infinite
    return values, {"missing": absent, "not finite": infinite, "text": ~known}


def text_of(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column of text as strings without blanks around them.

    Args:
        column: Binary or strings of any type; null is an empty text.

    Returns:
        Strings of shape [rows], and bool of shape [rows]: the values that are not UTF-8.
    """
    as_bytes = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
    return decode(column if pa.types.is_binary(column.type) else column.cast(as_bytes))


def distinct(column: pa.DictionaryArray) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Return the different texts of a dictionary column, each once in memory however often it is.

    Returns:
        The texts as in `text_of`, in the order in which they occur first; the index of the text of
        each row, -1 for null; and which texts are not UTF-8.
    """
    null = len(column.dictionary)  # which many chunks may share
    places = column.indices.cast(pa.int64()).fill_null(null).to_numpy(zero_copy_only=False)
    if null < 4 * len(places):
        rank = np.full(null + 1, -1)
        rank[places[::-1]] = np.arange(len(places))[::-1]  # the first one is written last
        used = np.flatnonzero(rank >= 0)
        order = used[np.argsort(rank[used])]
        order = order[order != null]
        rank[order], rank[null] = np.arange(len(order)), -1
        codes = rank[places]
    else:  # far more texts than rows
        used, first, codes = np.unique(places, return_index=True, return_inverse=True)
        ranked = np.argsort(first)
        ranked = ranked[used[ranked] != null]
        rank = np.full(len(used), -1)
        rank[ranked] = np.arange(len(ranked))
        order, codes = used[ranked], rank[codes]
    found = column.dictionary.take(pa.array(order))
    if not _is_text(found.type):  # numbers
        found = found.cast(pa.string())
    text, wrong = text_of(found)
    return text, codes, wrong


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or (types.is_string_view(kind) or types.is_large_binary(kind))
    )


def parse_quickly(text: pa.Array) -> np.ndarray | None:
    """Return texts as numbers if all of them are numbers that float32 can hold; None for others.

    Args:
        text: Strings of shape [values]; null is a gap.

    Returns:
        float64 of shape [values], NaN for a gap.
    """
    try:
        text[:_TRIED].cast(pa.float64())
        found = text.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    numbers = found.to_numpy(zero_copy_only=False)
    finite = int((np.abs(numbers) <= LARGEST).sum())
    return numbers if finite == len(numbers) - found.null_count else None


def parse_all(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return texts as numbers, and which are numbers, too large for float32 or not.

    Args:
        text: Strings of shape [values], without a null.

    Returns:
        float64 of shape [values], 0 if it is not a number, infinite if it is too large; and bool.
    """
    numeric = pc.match_substring_regex(text, NUMBER)
    numbers = pc.if_else(numeric, text, "0").cast(pa.float64()).to_numpy(zero_copy_only=False)
    numbers = np.where(np.abs(numbers) <= LARGEST, numbers, np.inf)
    return numbers, numeric.to_numpy(zero_copy_only=False)


def labels(
    text: pa.Array, name: str, nulls: frozenset[str], faults: BlockFaults
) -> tuple[list[str], np.ndarray]:
    """Return the distinct labels of a column, and the index of each row's label.

    Args:
        text: Strings without blanks around them, of shape [rows], or a dictionary of such
            strings; null means missing, and a dictionary has no null.
        name: The column.
        nulls: The texts that mean a missing value.
        faults: Where missing labels, long ones, and numbers too large for float32 are marked.

    Returns:
        The distinct texts, and int32 of shape [rows].
    """
    if isinstance(text, pa.DictionaryArray):
        encoded = text
    else:
        encoded = text.fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    absent = np.array([item in nulls or not item for item in texts], bool)
    long = np.array([len(item) > LONGEST_LABEL for item in texts], bool)
    huge = np.array([bool(_is_number(item)) and number(item) is None for item in texts], bool)
    if absent.any():
        faults.mark(absent[codes], "missing", name, lambda i: texts[codes[i]])
    if long.any():
        faults.mark(long[codes], "long", name, lambda i: texts[codes[i]])
    if huge.any():
        faults.mark(huge[codes], "not finite", name, lambda i: texts[codes[i]])
    return texts, codes
