"""Metrics of the user's own, from the labels and predictions of the test rows.

`gate.evaluator` names the function. It is called once for the model, once for the champion, and
for the baseline if that decides. For each metric it returns a number, or a value for each row, of
which the mean is the metric. It runs in the process of the step, so it sees the store's keys.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.evaluator_code import PATH, EvaluatorCode
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import Batch, TestData
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.metric_names import OWN, is_own
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import choices, counted, nearest

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@%-]{0,59}")
_MOST = 50  # metrics
_DICT = "a dict of names and numbers, or arrays with a value for each row: {'profit': 12.5}"
Values = NDArray[Any]
_Kind = TypeVar("_Kind", bound=Predictions)


class _RefusedError(Exception):
    """What is asked for or returned cannot be used: received, expected, fix."""


class Evaluator:
    """Keeps what the function may ask for while the rows are scored, and calls it.

    Args:
        code: The function.
        data: The test rows.
        options: The gate.
    """

    def __init__(self, code: EvaluatorCode, data: TestData, options: GateOptions) -> None:
        self.code, self._data, self._options = code, data, options
        self._labels: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []
        self._outputs: list[np.ndarray] = []
        self._of_champion: list[np.ndarray] = []
        self._kinds: dict[str, str] = {}

    def add(self, batch: Batch, outputs: np.ndarray) -> None:
        """Keep a batch of the model."""
        self._labels.append(batch.labels)
        if batch.weights is not None:
            self._weights.append(batch.weights)
        self._outputs.append(outputs)

    def add_champion(self, outputs: np.ndarray) -> None:
        """Keep the outputs of the champion for a batch."""
        self._of_champion.append(outputs)

    def of_model(self, predictions: _Kind) -> tuple[_Kind, dict[str, float]]:
        """Return the predictions with the values of each row, and the metrics that are numbers.

        Args:
            predictions: Those of the model.

        Raises:
            DataError: The function fails, returns something else, or only a number for a metric
                that needs a value for each row.
        """
        found, numbers = self._metrics(predictions, np.concatenate(self._outputs))
        self._kinds = _kinds(found, numbers)
        for name in filter(is_own, self._options.by_row):
            if name not in found.own:
                primary = name == self._options.primary_metric
                use = "which compares models" if primary else "for which slices have a threshold"
                others = choices(found.own, nearest(name, found.own)) or "no metric"
                raise self._failed(
                    f"{self._kinds.get(name, 'nothing')} for {name}; a value for each row for"
                    f" {others}",
                    f"a value for each row for {name}, {use}",
                    f"return an array with one value per row for {name.removeprefix(OWN)!r}",
                )
        return found, numbers

    def of_other(
        self, who: str, predictions: _Kind, row: np.ndarray | None = None
    ) -> tuple[_Kind, dict[str, float]]:
        """Return the same for the champion or the baseline, after the model.

        Args:
            who: Its name in messages.
            predictions: Its predictions.
            row: What the baseline predicts for each row: (classes,) probabilities, or () a value;
                None for the champion.

        Raises:
            DataError: The function fails, or returns other metrics than for the model.
        """
        if row is None:
            outputs = np.concatenate(self._of_champion)
        else:
            # A copy: the function may change its arguments in place.
            outputs = np.full((predictions.rows, *row.shape), row, np.float32)
        found, numbers = self._metrics(predictions, outputs)
        kinds, expected = _kinds(found, numbers), self._kinds
        differ = [it for it in {**expected, **kinds} if kinds.get(it) != expected.get(it)]
        if differ:
            said = [f"{it} is {kinds.get(it, 'missing')}" for it in differ]
            of_model = [f"{it} is {expected.get(it, 'missing')}" for it in differ]
            raise self._failed(
                f"for {who}: {choices(said)}",
                f"as for the model: {choices(of_model)}",
                "return the same names, each as a number or as a value for each row, for every"
                " model",
            )
        return found, numbers

    def _metrics(self, predictions: _Kind, outputs: np.ndarray) -> tuple[_Kind, dict[str, float]]:
        function = self._users(self.code.load)
        try:
            arguments = self._arguments(function, outputs)
            returned = self._users(lambda: function(**arguments))
            numbers, values = checked(returned, predictions.rows)
        except _RefusedError as error:
            raise self._failed(*error.args) from error
        own = {}
        for name, column in values.items():
            is_share = ((column == 0) | (column == 1)).all()
            own[f"{OWN}{name}"] = column.astype(bool if is_share else np.float64)
        lower = self._options.direction == "minimize"
        minimize = frozenset({self._options.primary_metric} if lower else ())
        found = replace(predictions, own=own, minimize=minimize)
        return found, {f"{OWN}{name}": value for name, value in numbers.items()}

    def _users(self, call: Callable[[], Any]) -> Any:
        """Return what the user's code returns; only its errors are the user's."""
        try:
            return call()
        except MemoryError:
            raise  # the step names the option that gives it more
        except (Exception, SystemExit) as error:
            fix = "correct the function; see the log for details"
            raise self._failed(self.code.said(error)[:2000], _DICT, fix) from error

    def _arguments(self, function: Callable[..., Any], outputs: np.ndarray) -> dict[str, Any]:
        """Return the arguments that the function takes."""
        taken = inspect.signature(function).parameters
        free = any(it.kind is it.VAR_KEYWORD for it in taken.values())
        classes = list(self._data.schema.classes)
        labels, weights = self._labels, self._weights
        makers: dict[str, Callable[[], Any]] = {
            "labels": lambda: np.concatenate(labels).astype(np.int64 if classes else np.float32),
            "predictions": lambda: outputs,
            "weights": lambda: np.concatenate(weights).astype(np.float32) if weights else None,
            "features": self._features,
            "classes": lambda: classes,
        }
        return {name: make() for name, make in makers.items() if name in taken or free}

    def _features(self) -> Mapping[str, NDArray[Any]]:
        data = self._data
        if data.raw:
            paths = [str(path) for path in data.raw]
            return {name: of_parquet(paths, name) for name in data.schema.names}
        if data.schema.picture is None:
            parts = [it.features for it in data.batches()]
            return {
                name: np.concatenate([part[name] for part in parts]) for name in data.schema.names
            }
        raise _RefusedError(
            "the argument features, but the rows are images",
            "only labels, predictions, weights and classes",
            "remove the argument features",
        )

    def _failed(self, received: str, expected: str, fix: str) -> DataError:
        what = f"{PATH} {self.code.module}:{self.code.function} failed"
        return DataError(Problem(what, received, expected, fix, PATH))


def _kinds(found: Predictions, numbers: Mapping[str, float]) -> dict[str, str]:
    """Return the kind of each metric, as text."""
    return dict.fromkeys(numbers, "a number") | dict.fromkeys(found.own, "a value for each row")


def of_parquet(paths: Sequence[str], name: str) -> NDArray[Any]:
    """Return a column of Parquet files without missing values; rows with the same text share it.

    Args:
        paths: The files, in order.
        name: The column.
    """
    from pyarrow import parquet, types

    kind = parquet.read_schema(paths[0]).field(name).type
    texts = [] if types.is_integer(kind) or types.is_floating(kind) else [name]
    files = [parquet.ParquetFile(path, read_dictionary=texts) for path in paths]
    chunks = [it for file in files for it in file.read(columns=[name]).column(name).chunks]
    if texts:
        values = [(it.dictionary.to_numpy(False), it.indices.to_numpy()) for it in chunks]
        return np.concatenate([known[codes] for known, codes in values])
    found = np.concatenate([it.to_numpy(zero_copy_only=False) for it in chunks])
    # Numbers were rounded to float32: as floats of 64 bits, none would equal 0.1.
    return found.astype(np.float32) if types.is_floating(kind) else found


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
        raise _RefusedError(
            said,
            f"1 to {_MOST} metrics",
            "return at least one metric, and only those that you need",
        )
    numbers_found: dict[str, float] = {}
    by_row: dict[str, Values] = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _RefusedError(
                f"a metric named {name!r}"[:200],
                "names of at most 60 characters, starting with a letter: letters, digits, _, -, .,"
                " @ and %",
                "rename the metric",
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
        fix = "return one value per row, in the rows' order"
        raise _RefusedError(f"{name} has {size}", expected, fix)
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        raise _RefusedError(
            f"{name} is not finite in {len(wrong):,} of {counted(rows, 'row')}, first in row"
            f" {wrong[0] + 1:,}",
            "a finite number for each row; the first row is row 1",
            "give these rows a number, for example 0",
        )
    return found
