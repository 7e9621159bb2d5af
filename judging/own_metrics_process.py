"""The process that computes metrics of the user's own, without the keys of the store.

It reads what to do as JSON from standard input, and leaves the metrics, or why there are none, as
JSON in a file.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.supervisor.kernel import child_setup
from kfp_tfjob.trainer import own_code_error

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@%-]{0,59}")
_MOST = 50  # metrics
_DICT = "a dict of names and numbers, for instance {'profit': 12.5}"


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
        answer = {"metrics": _checked(function(**_wanted(function, given)))}
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
    width = 0 if given["regression"] else len(given["classes"])
    return _array(given, given["predictions"], np.float32, width)


def _features(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    place, columns = given["features"], given["columns"]
    if "packed" in place:
        packed = _array(given, place["packed"], np.float32, len(columns))
        return {name: packed[:, at] for at, name in enumerate(columns)}
    if "parquet" in place:
        import pyarrow as pa
        from pyarrow import parquet

        tables = [parquet.read_table(path, columns=columns) for path in place["parquet"]]
        table = pa.concat_tables(tables)
        return {name: table[name].to_numpy() for name in columns}
    raise _RefusedError(
        "the argument features, and the rows are pictures",
        "only labels, predictions, weights and classes",
        "remove the argument features",
    )


def _checked(returned: Any) -> dict[str, float]:
    """Return the metrics; NaN for one without a value.

    Raises:
        _RefusedError: It is something else.
    """
    if not isinstance(returned, Mapping):
        kind = type(returned)
        raise _RefusedError(f"a {kind.__module__}.{kind.__qualname__}", _DICT, "return a dict")
    if not returned or len(returned) > _MOST:
        said = f"{len(returned)} metrics"
        raise _RefusedError(said, f"1 to {_MOST} metrics", "return those that matter")
    found: dict[str, float] = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _RefusedError(
                f"a metric named {name!r}"[:200],
                "names of letters, digits, _, -, ., @ and %, at most 60, with a letter first",
                "rename it",
            )
        number = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
            kind = type(number)
            said = f"{name} is a {kind.__module__}.{kind.__qualname__}"
            raise _RefusedError(said, "a number for each name", "convert it with float()")
        found[name] = float(number) if math.isfinite(number) else math.nan
    return found


if __name__ == "__main__":
    child_setup(first_to_die=True)()  # it ends with the step, also after SIGKILL
    sys.exit(main(json.load(sys.stdin)))
