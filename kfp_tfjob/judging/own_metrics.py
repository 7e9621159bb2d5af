"""User metrics: the numbers that `gate.evaluator` computes from the test rows.

`gate.evaluator` names the user's function. `judge` calls it once for the model, once for the
champion, and for the baseline if that decides. For each metric, the function returns a number, or
a value for each row whose mean is the metric. Only values by row can be compared between two
models, because a single number carries no uncertainty. The function runs in the step's process, so
it sees the store's keys.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import choices, counted, nearest
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.metric_names import OWN, is_own

from .evaluator_code import PATH, EvaluatorCode
from .predictions import Predictions
from .rows import Batch, TestData

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.@%-]{0,59}")
_MOST = 50  # metrics; each adds a row to the report
_DICT = "a dict of names and numbers, or arrays with a value for each row: {'profit': 12.5}"
Values = NDArray[Any]
_PredictionsT = TypeVar("_PredictionsT", bound=Predictions)


class _RefusedError(Exception):
    """An argument or a return value of the function is invalid: received, expected, fix."""


class Evaluator:
    """Collects the function's arguments while the rows are scored, and calls the function.

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
        self._champion_outputs: list[np.ndarray] = []
        self._metric_kinds: dict[str, str] = {}

    def add(self, batch: Batch, outputs: np.ndarray) -> None:
        """Collect a batch of test rows and the model's outputs for them."""
        self._labels.append(batch.labels)
        if batch.weights is not None:
            self._weights.append(batch.weights)
        self._outputs.append(outputs)

    def add_champion(self, outputs: np.ndarray) -> None:
        """Collect the champion's outputs for a batch."""
        self._champion_outputs.append(outputs)

    def model_metrics(self, predictions: _PredictionsT) -> tuple[_PredictionsT, dict[str, float]]:
        """Return the predictions with the metrics by row, and the metrics that are numbers.

        Args:
            predictions: The model's predictions.

        Raises:
            DataError: The function fails, returns something else, or only a number for a metric
                that needs a value for each row.
        """
        measured, numbers = self._metrics(predictions, np.concatenate(self._outputs))
        self._metric_kinds = _metric_kinds(measured, numbers)
        for name in filter(is_own, self._options.by_row):
            if name not in measured.own:
                primary = name == self._options.primary_metric
                use = "which compares models" if primary else "for which slices have a threshold"
                alternatives = choices(measured.own, nearest(name, measured.own)) or "no metric"
                raise self._failure(
                    f"{self._metric_kinds.get(name, 'nothing')} for {name}; a value for each row"
                    f" for {alternatives}",
                    f"a value for each row for {name}, {use}",
                    f"return an array with one value per row for {name.removeprefix(OWN)!r}",
                )
        return measured, numbers

    def reference_metrics(
        self, who: str, predictions: _PredictionsT, row: np.ndarray | None = None
    ) -> tuple[_PredictionsT, dict[str, float]]:
        """Return the metrics of the champion or the baseline; call `model_metrics` first.

        Args:
            who: The model's name in messages, for example `champion 3`.
            predictions: The model's predictions.
            row: The baseline's prediction for each row: (classes,) probabilities, or () a value;
                None for the champion.

        Returns:
            The predictions with the metrics by row, and the metrics that are numbers.

        Raises:
            DataError: The function fails, or returns other metrics than for the model.
        """
        if row is None:
            outputs = np.concatenate(self._champion_outputs)
        else:
            # Not a view: the function may change its arguments in place.
            outputs = np.full((predictions.rows, *row.shape), row, np.float32)
        measured, numbers = self._metrics(predictions, outputs)
        kinds, model_kinds = _metric_kinds(measured, numbers), self._metric_kinds
        differ = [
            metric
            for metric in {**model_kinds, **kinds}
            if kinds.get(metric) != model_kinds.get(metric)
        ]
        if differ:
            received = [f"{metric} is {kinds.get(metric, 'missing')}" for metric in differ]
            expected_kinds = [
                f"{metric} is {model_kinds.get(metric, 'missing')}" for metric in differ
            ]
            raise self._failure(
                f"for {who}: {choices(received)}",
                f"as for the model: {choices(expected_kinds)}",
                "return the same names, each as a number or as a value for each row, for every"
                " model",
            )
        return measured, numbers

    def _metrics(
        self, predictions: _PredictionsT, outputs: np.ndarray
    ) -> tuple[_PredictionsT, dict[str, float]]:
        function = self._call_user_code(self.code.load)
        try:
            arguments = self._arguments(function, outputs)
            returned = self._call_user_code(lambda: function(**arguments))
            numbers, values = checked(returned, predictions.rows)
        except _RefusedError as error:
            raise self._failure(*error.args) from error
        row_metrics = {}
        for name, row_values in values.items():
            is_share = ((row_values == 0) | (row_values == 1)).all()
            row_metrics[f"{OWN}{name}"] = row_values.astype(bool if is_share else np.float64)
        lower = self._options.direction == "minimize"
        minimize = frozenset({self._options.primary_metric} if lower else ())
        measured = replace(predictions, own=row_metrics, minimize=minimize)
        return measured, {f"{OWN}{name}": value for name, value in numbers.items()}

    def _call_user_code(self, call: Callable[[], Any]) -> Any:
        """Call the user's code; turn its errors, and only its errors, into a DataError."""
        try:
            return call()
        except MemoryError:
            raise  # the step names the option that gives it more
        except (Exception, SystemExit) as error:
            fix = "correct the function; see the log for details"
            raise self._failure(self.code.said(error)[:2000], _DICT, fix) from error

    def _arguments(self, function: Callable[..., Any], outputs: np.ndarray) -> dict[str, Any]:
        """Return the keyword arguments that the function takes; others are not computed."""
        parameters = inspect.signature(function).parameters
        takes_any = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        classes = list(self._data.schema.classes)
        labels, weights = self._labels, self._weights
        makers: dict[str, Callable[[], Any]] = {
            "labels": lambda: np.concatenate(labels).astype(np.int64 if classes else np.float32),
            "predictions": lambda: outputs,
            "weights": lambda: np.concatenate(weights).astype(np.float32) if weights else None,
            "features": self._features,
            "classes": lambda: classes,
        }
        if self._data.schema.picture and "features" not in parameters:
            del makers["features"]  # images have no columns for `**others`
        return {name: make() for name, make in makers.items() if name in parameters or takes_any}

    def _features(self) -> Mapping[str, NDArray[Any]]:
        data = self._data
        if data.schema.picture is None:
            return {
                feature.name: of_parquet(data.shards, feature.name, feature.column_type)
                for feature in data.schema.features
            }
        raise _RefusedError(
            "the argument features, but the rows are images",
            "only labels, predictions, weights and classes",
            "remove the argument features",
        )

    def _failure(self, received: str, expected: str, fix: str) -> DataError:
        summary = f"{PATH} {self.code.module}:{self.code.function} failed"
        problem = Problem(summary, received, expected, fix, PATH, name="own-metrics-failed")
        return DataError(problem)


def _metric_kinds(predictions: Predictions, numbers: Mapping[str, float]) -> dict[str, str]:
    """Return `a number` or `a value for each row` by metric."""
    return dict.fromkeys(numbers, "a number") | dict.fromkeys(
        predictions.own, "a value for each row"
    )


def of_parquet(paths: Sequence[Path], name: str, column_type: type[ColumnType]) -> NDArray[Any]:
    """Return a (rows,) column of Parquet files as raw values, each distinct string stored once.

    Numbers keep the type of the files, float32 or float64.

    Args:
        paths: The files, in order.
        name: The column.
        column_type: Its type.
    """
    from pyarrow import parquet, types

    stored_type = parquet.read_schema(paths[0]).field(name).type
    strings = [name] if types.is_string(stored_type) else []
    files = [parquet.ParquetFile(path, read_dictionary=strings) for path in paths]
    chunks = [chunk for file in files for chunk in file.read(columns=[name]).column(name).chunks]
    values = np.concatenate([column_type.raw_values(chunk) for chunk in chunks])
    # As float64, a rounded 0.1 would not equal the 0.1 of the user's function.
    return values.astype(np.float32) if types.is_float32(stored_type) else values


def checked(returned: Any, rows: int) -> tuple[dict[str, float], dict[str, Values]]:
    """Return the metrics that are numbers, NaN if not finite, and the (rows,) metrics by row.

    Args:
        returned: The return value of the user's function.
        rows: The number of rows.

    Raises:
        _RefusedError: The return value is not a dict of metrics, or a metric is invalid.
    """
    if not isinstance(returned, Mapping):
        kind = type(returned)
        raise _RefusedError(f"a {kind.__module__}.{kind.__qualname__}", _DICT, "return a dict")
    if not returned or len(returned) > _MOST:
        received = f"{len(returned)} metrics"
        raise _RefusedError(
            received,
            f"1 to {_MOST} metrics",
            "return at least one metric, and only those that you need",
        )
    numbers_by_name: dict[str, float] = {}
    values_by_name: dict[str, Values] = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _RefusedError(
                f"a metric named {name!r}"[:200],
                "names of at most 60 characters, starting with a letter: letters, digits, _, -, .,"
                " @ and %",
                "rename the metric",
            )
        number = _as_number(value, rows)
        if number is None:
            values_by_name[name] = _as_row_values(name, value, rows)
        else:
            numbers_by_name[name] = number if math.isfinite(number) else math.nan
    return numbers_by_name, values_by_name


def _as_number(value: Any, rows: int) -> float | None:
    """Return a scalar as a float; None if the value is no scalar, or is a bool."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.shape != (rows,):
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    return float(value)


def _as_row_values(name: str, value: Any, rows: int) -> Values:
    """Return a metric's (rows,) finite values."""
    given_type = type(value)
    wrong = f"{name} is a {given_type.__module__}.{given_type.__qualname__}"
    expected = f"a number, or an array of {rows:,} numbers, one for each row"
    try:
        values = np.asarray(value)
    except (TypeError, ValueError):  # lists of different lengths
        values = np.empty(0, object)
    if values.dtype.kind not in "biuf" or not values.ndim:
        element_type = f" of {values.dtype}" if isinstance(value, np.ndarray) else ""
        raise _RefusedError(
            wrong + element_type, expected, "convert it with float() or np.asarray()"
        )
    if values.shape != (rows,):
        size = counted(len(values), "value") if values.ndim == 1 else f"the shape {values.shape}"
        fix = "return one value per row, in the rows' order"
        raise _RefusedError(f"{name} has {size}", expected, fix)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise _RefusedError(
            f"{name} is not finite in {len(wrong):,} of {counted(rows, 'row')}, first in row"
            f" {wrong[0] + 1:,}",
            "a finite number for each row; the first row is row 1",
            "give these rows a number, for example 0",
        )
    return values
