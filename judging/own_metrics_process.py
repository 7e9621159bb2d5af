"""The process that computes metrics of the user's own, without the keys of the store.

It reads what to do as JSON from standard input, and leaves the metrics, or why there are none, as
JSON in a file. The values by row of a metric are a file for each.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import numbers
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.own_features import Columns, PackedColumns, ParquetColumns
from kfp_tfjob.storage.words import counted
from kfp_tfjob.supervisor.kernel import child_setup
from kfp_tfjob.trainer import own_code_error

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@%-]{0,59}")
_MOST = 50  # metrics
_CHUNK = 262_144  # rows that are checked and written at once
_SHOWN = 5  # rows in a message
_DICT = "a dict of names and numbers, or arrays with a value for each row: {'profit': 12.5}"
Values = NDArray[Any]


class _RefusedError(Exception):
    """What is asked for or returned cannot be used: received, expected, fix."""


def main(given: Mapping[str, Any]) -> int:
    """Call the function; return the exit code.

    Args:
        given: What `own_metrics.run` wrote.
    """
    if given["code"]:
        sys.path.insert(0, given["code"])
    answer: dict[str, Any]
    try:
        function = getattr(importlib.import_module(given["module"]), given["function"])
        metrics, by_row = checked(function(**_wanted(function, given)), given["rows"])
        kinds = {name: _write(it, Path(given["values"]) / name) for name, it in by_row.items()}
        answer = {"metrics": metrics, "by_row": kinds}
    except _RefusedError as error:
        answer = dict(zip(("received", "expected", "fix"), error.args, strict=True))
    except BaseException as error:  # also SystemExit
        traceback.print_exc()
        answer = {
            "received": own_code_error.said(error, given["code"])[:2000],
            "expected": _DICT,
            "fix": "correct the function; the log has more",
        }
    Path(given["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _wanted(function: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function takes."""
    taken = inspect.signature(function).parameters
    free = any(it.kind is it.VAR_KEYWORD for it in taken.values())
    makers = {
        "labels": lambda: _array(given, "labels", np.float32 if given["regression"] else np.int64),
        "predictions": lambda: _predictions(given),
        "weights": lambda: _array(given, "weights", np.float32) if given["weighted"] else None,
        "features": lambda: _features(given),
        "classes": lambda: given["classes"],
    }
    return {name: make() for name, make in makers.items() if name in taken or free}


def _array(given: Mapping[str, Any], name: str, kind: Any, width: int = 0) -> np.ndarray:
    """Return an array of all rows, which is read from its file where it is used."""
    shape = (given["rows"], width) if width else (given["rows"],)
    return np.memmap(Path(given["folder"]) / name, kind, "r", shape=shape)


def _predictions(given: Mapping[str, Any]) -> np.ndarray:
    if (same := given["same_for_all"]) is not None:
        row = np.asarray(same, np.float32)
        return np.broadcast_to(row, (given["rows"], *row.shape))
    width = 0 if given["regression"] else len(given["classes"])
    return _array(given, given["predictions"], np.float32, width)


def _features(given: Mapping[str, Any]) -> Columns:
    place, columns = given["features"], given["columns"]
    if "packed" in place:
        return PackedColumns(columns, _array(given, place["packed"], np.float32, len(columns)))
    if "parquet" in place:
        return ParquetColumns(columns, place["parquet"], Path(given["folder"]) / "columns")
    raise _RefusedError(
        "the argument features, and the rows are pictures",
        "only labels, predictions, weights and classes",
        "remove the argument features",
    )


def checked(returned: Any, rows: int) -> tuple[dict[str, float], dict[str, Values]]:
    """Return the metrics that are numbers, NaN for one without a value, and those by row.

    Args:
        returned: What the function returned.
        rows: The number of rows.

    Raises:
        _RefusedError: It is something else.
    """
    if not isinstance(returned, Mapping):
        kind = type(returned)
        raise _RefusedError(f"a {kind.__module__}.{kind.__qualname__}", _DICT, "return a dict")
    if not returned or len(returned) > _MOST:
        said = f"{len(returned)} metrics"
        raise _RefusedError(said, f"1 to {_MOST} metrics", "return those that matter")
    numbers_found: dict[str, float] = {}
    by_row: dict[str, Values] = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _RefusedError(
                f"a metric named {name!r}"[:200],
                "names of letters, digits, _, -, ., @ and %, at most 60, with a letter first",
                "rename it",
            )
        number = _number(value, rows)
        if number is None:
            by_row[name] = _by_row(name, value, rows)
        else:
            numbers_found[name] = number if math.isfinite(number) else math.nan
    return numbers_found, by_row


def _number(value: Any, rows: int) -> float | None:
    """Return a number; None for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.shape != (rows,):
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    return float(value)


def _by_row(name: str, value: Any, rows: int) -> Values:
    """Return the (rows,) values of a metric."""
    kind = type(value)
    wrong = f"{name} is a {kind.__module__}.{kind.__qualname__}"
    expected = f"a number, or an array of {rows:,} numbers, one for each row"
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "biuf" or not found.ndim:
        more = f" of {found.dtype}" if isinstance(value, np.ndarray) else ""
        raise _RefusedError(wrong + more, expected, "convert it with float() or np.asarray()")
    if found.shape != (rows,):
        size = counted(len(found), "value") if found.ndim == 1 else f"the shape {found.shape}"
        fix = "return the values of the rows in their order, and leave none out"
        raise _RefusedError(f"{name} has {size}", expected, fix)
    count, first = 0, []
    for start, part in _chunks(found):
        places = np.flatnonzero(~np.isfinite(part))
        count += len(places)
        first += [f"{start + place + 1:,}" for place in places[: _SHOWN - len(first)]]
    if count:
        others = f" and {count - len(first):,} more" if count > len(first) else ""
        raise _RefusedError(
            f"{name} is not finite in {count:,} of {counted(rows, 'row')}: row"
            f"{'s' * (count > 1)} {', '.join(first)}{others}",
            "a finite number for each row; the first row is row 1",
            "give these rows a number, for instance 0",
        )
    return found


def _write(values: Values, path: Path) -> str:
    """Write the values of a metric; return their type: bool if all are 0 or 1, else float64."""
    share = all(((part == 0) | (part == 1)).all() for _, part in _chunks(values))
    kind = np.dtype(bool if share else np.float64)
    with open(path, "wb") as file:
        for _, part in _chunks(values):
            np.ascontiguousarray(part, kind).tofile(file)
    return kind.name


def _chunks(values: Values) -> Iterator[tuple[int, Values]]:
    for start in range(0, len(values), _CHUNK):
        yield start, values[start : start + _CHUNK]


if __name__ == "__main__":
    child_setup(first_to_die=True)()  # it ends with the step, also after SIGKILL
    sys.exit(main(json.load(sys.stdin)))
