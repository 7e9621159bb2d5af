"""Decodes a line of JSON, and says what a text is that is JSON in another shape than JSON Lines.

Most files that are called JSON have one of a few shapes, each written by a usual call: an array,
one object for the whole table, an object over several lines, or what Python prints. Called by the
reader of JSON Lines.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from typing import Any, NamedTuple

_FORMAT = "data_options.format"
_LINES = 'in pandas, to_json(PATH, orient="records", lines=True, date_format="iso")'
_LONGEST_LITERAL = 1 << 16  # bytes of a line that is compared with Python's literals
_FEWEST_ARRAYS = 2
_SEPARATOR = b"\x1e"  # before each object of a JSON text sequence (RFC 7464); read as a blank
# The beginning of an object or array for a whole table, which may be cut.
_NESTED = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*[\[{]')
_ROWS = re.compile(rb"\[\s*[\[{]")


class Literal(str):
    """A number as it is written."""


class _NotJsonError(Exception):
    """A line is not JSON with each key once, or is nested too deeply."""


class _KeyTwiceError(_NotJsonError):
    """An object has a key twice; the argument is the key."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise _KeyTwiceError(key)
    return members


_decoder = json.JSONDecoder(
    object_pairs_hook=_once, parse_int=Literal, parse_float=Literal, parse_constant=Literal
)


def _decoded(line: bytes) -> Any:
    """Return the value of a line.

    Raises:
        _NotJsonError: It is no JSON, has a key twice, or is nested too deeply.
    """
    text = line.decode(errors="surrogateescape").strip()
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise _NotJsonError from error


def object_of(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, with each key once; None for anything else."""
    try:
        row = _decoded(line)
    except _NotJsonError:
        return None
    return row if isinstance(row, dict) else None


def key_twice(line: bytes) -> str | None:
    """Return a key that an object on a line has twice; None if there is none."""
    try:
        _decoded(line)
    except _KeyTwiceError as error:
        return str(error)
    except _NotJsonError:
        pass
    return None


def is_table(row: dict[str, Any]) -> bool:
    """Return whether the only object of a file is the whole table, and not its only row."""
    values = [value for value in row.values() if isinstance(value, list | dict)]
    if not values:
        return False
    rows = any(
        isinstance(value, list) and value and isinstance(value[0], list | dict) for value in values
    )
    return rows or len(values) == len(row)


class Shape(NamedTuple):
    """The form of a text that is not JSON Lines.

    Attributes:
        words: The name of the form.
        fix: The fix for the user.
        path: The option to set, if there is one.
        suggestion: Its value.
    """

    words: str
    fix: str
    path: str = ""
    suggestion: str = ""


_ARRAY = Shape(
    "one JSON array of all rows",
    f"write one object on each line, without a comma after it: {_LINES}; on the command line,"
    " jq -c '.[]'",
)
_ARRAYS = Shape(
    "an array on each line",
    f"write objects, because an array does not name its columns: {_LINES}",
)
_TABLE = Shape("one JSON object for the whole table", f"write one object for each row: {_LINES}")
_LONG_OBJECTS = Shape(
    "objects that continue on the next line",
    "write each object on one line; on the command line, jq -c .",
)
_PYTHON = Shape(
    "objects as Python prints them", "write each row with json.dumps(row), not with str(row)"
)
_COMMENTS = Shape("comments, which JSON does not have", "delete the comments")
_COMMAS = Shape("objects with a comma after each", "delete the commas at the ends of the lines")
_UNKNOWN = Shape(
    "no JSON object",
    f"write the file as JSON Lines: {_LINES}; or set {_FORMAT}=csv if it is a CSV",
    _FORMAT,
    "csv",
)


def shape_of(text: bytes, is_whole: bool) -> Shape:
    """Return the shape of a text without an object on a line, or whose only object is the table.

    Args:
        text: The first lines of a file, with at least one that is not empty.
        is_whole: Whether they are all lines.
    """
    plain = text.replace(_SEPARATOR, b"").strip()
    lines = [line for line in plain.split(b"\n") if line.strip()]
    first = lines[0].strip()
    if first.startswith((b"//", b"/*", b"#")):
        return _COMMENTS
    if plain.startswith(b"["):
        some = lines[:_FEWEST_ARRAYS]
        if len(some) == _FEWEST_ARRAYS and all(map(_is_array, some)):
            return _ARRAYS
        return _ARRAY if _ROWS.match(plain) else _ARRAYS if _is_array(first) else _UNKNOWN
    if not plain.startswith(b"{"):
        return _UNKNOWN
    if (key := key_twice(first)) is not None:
        return Shape(f"the key {key!r} twice on a line", "rename one of the two, or remove it")
    if first.endswith(b",") and object_of(first[:-1]) is not None:
        return _COMMAS
    if object_of(first) is not None or (len(lines) == 1 and _NESTED.match(plain)):
        return _TABLE
    if _is_python(first):
        return _PYTHON
    if b"//" in first or b"/*" in first or b" #" in first:
        return _COMMENTS
    if len(lines) == 1:
        return _UNKNOWN
    only_object = object_of(plain) if is_whole else None
    return _TABLE if only_object is not None and is_table(only_object) else _LONG_OBJECTS


def is_list(text: bytes) -> bool:
    """Return whether rows are in an array or have commas behind them, so only the last is valid."""
    return shape_of(text, is_whole=True) in (_ARRAY, _COMMAS)


def _is_array(line: bytes) -> bool:
    try:
        return isinstance(_decoded(line), list)
    except _NotJsonError:
        return False


def _is_python(line: bytes) -> bool:
    """Return whether a line is a dict of Python, such as {'a': None}."""
    if len(line) > _LONGEST_LITERAL:
        return False
    text = re.sub(r"\b(nan|inf)\b", "None", line.decode(errors="replace"))
    try:
        return isinstance(ast.literal_eval(text), dict)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
