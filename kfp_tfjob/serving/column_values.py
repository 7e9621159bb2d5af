"""Reads the values of one column of a request, as JSON or the tensors of the protocol have them.

Each reader returns the values in the type that the model takes, and what is wrong with which row.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kfp_tfjob.features.coding import (
    BOOLEAN,
    CATEGORY,
    DATE,
    FALSE_TEXTS,
    NO_DATE,
    NUMBER,
    TEXT,
    TRUE_TEXTS,
)
from kfp_tfjob.features.pictures import PICTURE

_NUMBERS = {int, float}
_BLANKS = " \t"  # which prepare_data removes around texts
_LARGEST = float(np.finfo(np.float32).max)
_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # of JPEG and PNG
# Microseconds: fewer may be milliseconds of today, and more are beyond the year 9999.
_FEWEST, _MOST = 10**14, 253_402_300_800 * 10**6
# The values of a column of shape [rows], and the number of each wrong row with what its value is.
Read = tuple[np.ndarray, list[tuple[int, str]]]


def _numbers(values: Sequence[Any]) -> Read:
    """Return float64, NaN for a gap. A model has float32, so no number may be larger."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        found = values.astype(np.float64)
        return found, _too_large(found)
    types = set(map(type, values))
    if not types <= {*_NUMBERS, type(None)}:
        wrong = [
            (row, f"{_named(value)} instead of a number")
            for row, value in enumerate(values)
            if value is not None and type(value) not in _NUMBERS
        ]
        return np.zeros(0), wrong
    try:
        plain = [np.nan if value is None else value for value in values]
        found = np.array(plain if type(None) in types else values, np.float64)
    except OverflowError:  # a whole number of Python has any size
        found = np.array([np.inf if abs(value or 0) > _LARGEST else 0 for value in values])
    return found, _too_large(found)


def _too_large(values: np.ndarray) -> list[tuple[int, str]]:
    rows = np.flatnonzero(np.abs(values) > _LARGEST)  # also infinity
    return [(int(row), "too large for a float32") for row in rows]


def _booleans(values: Sequence[Any]) -> Read:
    """Return b"true", b"false", or b"" for a gap; the numbers 1 and 0 are booleans, too."""
    if isinstance(values, np.ndarray) and values.dtype == bool:
        return np.where(values, b"true", b"false").astype(object), []
    found, wrong = [], []
    for row, value in enumerate(values):
        text = _text(value)
        word = text.strip(_BLANKS).lower() if text is not None else None
        known = isinstance(value, int | float | np.number) and value in (0, 1)
        if word in TRUE_TEXTS or (known and value == 1):
            found.append(b"true")
        elif word in FALSE_TEXTS or known:
            found.append(b"false")
        elif value is None or word == "":
            found.append(b"")
        else:
            wrong.append((row, f"{_named(value)} instead of true or false"))
    return np.array(found, object), wrong


def _texts(values: Sequence[Any]) -> Read:
    """Return UTF-8 without blanks around it, as prepare_data reads texts; b"" for a gap."""
    found, wrong = np.empty(len(values), object), []
    for row, value in enumerate(values):
        try:
            if value is None:
                found[row] = b""
            elif isinstance(value, str):
                found[row] = value.strip(_BLANKS).encode()
            elif isinstance(value, bytes) and value.decode() is not None:
                found[row] = value.strip(_BLANKS.encode())
            else:
                wrong.append((row, f"{_named(value)} instead of a text"))
        except UnicodeError:
            wrong.append((row, "not UTF-8"))
    return found, wrong


def _dates(values: Sequence[Any]) -> Read:
    """Return microseconds since 1970, UTC; NO_DATE for a gap.

    The signature takes microseconds, so TensorFlow Serving does, too, and they are read if they
    cannot be seconds or milliseconds.
    """
    import pyarrow as pa

    from kfp_tfjob.features import dates

    texts = [_text(value) for value in values]
    whole = {
        row: int(value)
        for row, value in enumerate(values)
        if isinstance(value, int | np.integer) and not isinstance(value, bool)
    }
    wrong = [
        (row, f"{_named(value)} instead of a date")
        for row, (value, text) in enumerate(zip(values, texts, strict=True))
        if text is None and value is not None and not _is_microseconds(whole.get(row, 0))
    ]
    found, good = dates.parse_all(pa.array([text.strip() if text else "" for text in texts]))
    wrong += [(int(row), "no date") for row in np.flatnonzero(~good) if texts[row]]
    for row in whole.keys() - {row for row, _ in wrong}:
        found[row] = whole[row]
    return found, sorted(wrong)


def _is_microseconds(value: int) -> bool:
    """Tell whether a number is a date, or the gap, as the signature takes it."""
    return value == NO_DATE or _FEWEST <= abs(value) <= _MOST


def _pictures(values: Sequence[Any]) -> Read:
    """Return the bytes of the files."""
    found, wrong = np.empty(len(values), object), []
    for row, value in enumerate(values):
        if isinstance(value, dict) and value.keys() == {"b64"}:
            value = value["b64"]
        data = value if isinstance(value, bytes) and value.startswith(_HEADS) else b""
        text = _text(value)
        if not data and text:
            try:
                data = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                wrong.append((row, "not base64"))
                continue
        if not data.startswith(_HEADS):
            wrong.append((row, "no JPEG or PNG"))
        found[row] = data
    return found, wrong


READERS: dict[str, Callable[[Sequence[Any]], Read]] = {
    NUMBER: _numbers,
    BOOLEAN: _booleans,
    CATEGORY: _texts,
    TEXT: _texts,
    DATE: _dates,
    PICTURE: _pictures,
}


def _text(value: Any) -> str | None:
    """Return a text, also one that came as bytes; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None


def _named(value: Any) -> str:
    """Return what a value of JSON is called."""
    if isinstance(value, bool | np.bool_):
        return "true or false"
    if isinstance(value, int | float | np.number):
        return "a number"
    if isinstance(value, str | bytes):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
