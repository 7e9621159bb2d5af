"""Values as text to float32 and to labels: the one place that says what a number is."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.prepare_data.faults import BlockFaults

BLANKS = " \t"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_NOT_FINITE = r"(?i)[+-]?(nan|inf|infinity)"
_BOOLS = pa.array(["true", "True", "TRUE", "false", "False", "FALSE"])
_TRUE = _BOOLS[:3]
_LARGEST = float(np.finfo(np.float32).max)
_is_number = re.compile(_NUMBER, re.ASCII).fullmatch


def number(text: str) -> float | None:
    """Return the value of a number in text; None when it is not one that float32 can hold."""
    return value if _is_number(text) and abs(value := float(text)) <= _LARGEST else None


def plain_number(text: str) -> bool:
    """Tell whether a text is written as a finite number."""
    return bool(_is_number(text))


def strings(column: pa.Array, name: str, faults: BlockFaults) -> pa.Array:
    """Return a binary column as text without blanks around it; what is not UTF-8 is a fault."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        shown = [value.decode(errors="replace") for value in values]
        wrong = np.fromiter(
            (value != text.encode() for value, text in zip(values, shown, strict=True)), bool
        )
        faults.mark(wrong, "encoding", name, lambda i: shown[i])
        # One fault a value is enough: what is not UTF-8 becomes a number that nobody uses.
        text = pa.array(np.where(wrong, "0", shown).tolist(), pa.string())
    return pc.utf8_trim(text, characters=BLANKS)


def numbers(text: pa.Array, name: str, nulls: pa.Array, faults: BlockFaults) -> np.ndarray:
    """Return texts as numbers; what is none is a fault and becomes 0.

    Args:
        text: Strings without blanks around them, of shape [rows].
        name: The column.
        nulls: The texts that mean that a value is missing.
        faults: Where faults are marked.

    Returns:
        float32 of shape [rows].
    """
    missing = pc.is_in(text, value_set=nulls)
    bools = pc.is_in(text, value_set=_BOOLS)
    numeric = pc.and_not(pc.match_substring_regex(text, f"^{_NUMBER}$"), missing)
    values = pc.if_else(numeric, text, "0").cast(pa.float32()).to_numpy(zero_copy_only=False).copy()
    values[pc.is_in(text, value_set=_TRUE).to_numpy(zero_copy_only=False)] = 1
    absent = missing.to_numpy(zero_copy_only=False)
    infinite = pc.match_substring_regex(text, f"^{_NOT_FINITE}$").to_numpy(zero_copy_only=False)
    infinite = (infinite & ~absent) | ~np.isfinite(values)
    known = pc.or_(numeric, bools).to_numpy(zero_copy_only=False) | absent | infinite

    def text_at(i: int) -> str:
        return text[i].as_py()

    faults.mark(absent, "missing", name, text_at)
    faults.mark(infinite, "not finite", name, text_at)
    faults.mark(~known, "text", name, text_at)
    return values


def labels(
    text: pa.Array, name: str, nulls: frozenset[str], faults: BlockFaults
) -> tuple[list[str], np.ndarray]:
    """Return the distinct labels of a column, and for each row which of them it has.

    Args:
        text: Strings without blanks around them, of shape [rows]; null is missing.
        name: The column.
        nulls: The texts that mean that a value is missing.
        faults: Where missing labels, and numbers too large for float32, are marked.

    Returns:
        The distinct texts, and int32 of shape [rows].
    """
    encoded = text.fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    absent = np.array([item in nulls or not item for item in texts], bool)
    huge = np.array([bool(_is_number(item)) and number(item) is None for item in texts], bool)
    if absent.any():
        faults.mark(absent[codes], "missing", name, lambda i: texts[codes[i]])
    if huge.any():
        faults.mark(huge[codes], "not finite", name, lambda i: texts[codes[i]])
    return texts, codes
