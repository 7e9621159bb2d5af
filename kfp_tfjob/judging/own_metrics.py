"""Metrics of the user's own, from the labels and predictions of the test rows.

`gate.evaluator` names the function. It is called once for the model, once for the champion, and
for the baseline if that decides. For each metric it returns a number, or a value for each row, of
which the mean is the metric. It runs in the process of the step, so it sees the keys of the store.
"""

from __future__ import annotations

import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.features.served_model import Block
from kfp_tfjob.judging.columns import VALUES_IN_MEMORY, Column, Growing, chunks
from kfp_tfjob.judging.evaluator_code import PATH, EvaluatorCode
from kfp_tfjob.judging.own_features import Columns, of_parquet
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


class _RefusedError(Exception):
    """What is asked for or returned cannot be used: received, expected, fix."""


@dataclass(frozen=True)
class OwnMetrics:
    """What the function returned for one model, by the names of the metrics with `own/` before.

    Attributes:
        numbers: The metrics that are one number; NaN for one without a value.
        by_row: The (rows,) values of the others: float64, or bool where all are 0 or 1.
    """

    numbers: Mapping[str, float]
    by_row: Mapping[str, Column]

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each metric, as text."""
        return dict.fromkeys(self.numbers, "a number") | dict.fromkeys(
            self.by_row, "a value for each row"
        )

    def with_rows(self, predictions: Predictions, options: GateOptions) -> Predictions:
        """Return the predictions of the model with the values of each row."""
        lower = {options.primary_metric} if options.direction == "minimize" else set()
        return replace(predictions, own=self.by_row, minimize=frozenset(lower))


class Evaluator:
    """Keeps what the function may ask for while the rows are scored, and calls it.

    Args:
        code: The function.
        folder: Where the rows are written; the values of the metrics may stay there.
        data: The test rows.
        options: The gate.
    """

    def __init__(
        self, code: EvaluatorCode, folder: Path, data: TestData, options: GateOptions
    ) -> None:
        folder.mkdir(parents=True)
        self.code, self._folder, self._data = code, folder, data
        self.options = options
        self._rows = 0
        self._ours: OwnMetrics | None = None
        self._files = {
            name: open(folder / name, "wb") for name in ("labels", "model", "champion", "weights")
        }
        self._packed = not data.raw and data.schema.picture is None
        if self._packed:
            self._files["features"] = open(folder / "features", "wb")

    def add(self, batch: Batch, predictions: Predictions, outputs: np.ndarray) -> None:
        """Keep a batch of the model."""
        kind = np.int64 if self._data.schema.classes else np.float32
        self._rows += len(batch.labels)
        self._write("labels", batch.labels, kind)
        self._write("model", outputs, np.float32)
        if batch.weights is not None:
            self._write("weights", batch.weights, np.float32)
        if self._packed:
            assert isinstance(batch.features, Block)
            self._write("features", batch.features.rows, np.float32)

    def add_champion(self, outputs: np.ndarray) -> None:
        """Keep the outputs of the champion for a batch."""
        self._write("champion", outputs, np.float32)

    def _write(self, name: str, values: Any, kind: Any) -> None:
        self._files[name].write(np.ascontiguousarray(np.asarray(values), kind).data)

    def of_model(self) -> OwnMetrics:
        """Return the metrics of the model.

        Raises:
            DataError: The function fails, returns something else, or only a number for a metric
                that needs a value for each row.
        """
        found = self._ours = self._metrics("model")
        for name in filter(is_own, self.options.by_row):
            if name not in found.by_row:
                primary = name == self.options.primary_metric
                use = "which compares models" if primary else "for which slices have a threshold"
                others = choices(found.by_row, nearest(name, found.by_row)) or "no metric"
                raise self._failed(
                    f"{found.kinds.get(name, 'nothing')} for {name}; a value for each row for"
                    f" {others}",
                    f"a value for each row for {name}, {use}",
                    f"return an array with one value per row for {name.removeprefix(OWN)!r}",
                )
        return found

    def of_champion(self, name: str) -> OwnMetrics:
        """Return the metrics of the champion; they must be those of the model, which comes first.

        Args:
            name: Its name in messages.

        Raises:
            DataError: The function fails, or returns other metrics.
        """
        return self._same(self._metrics("champion"), name)

    def of_constant(self, outputs: np.ndarray) -> OwnMetrics:
        """Return the metrics of the baseline, which predicts the same for all rows.

        Args:
            outputs: What it predicts for a row: (classes,) probabilities, or () a value.

        Raises:
            DataError: The function fails, or returns other metrics.
        """
        row = np.asarray(outputs, np.float32)
        every = np.broadcast_to(row, (self._rows, *row.shape))
        return self._same(self._metrics("baseline", every), "the baseline")

    def _same(self, found: OwnMetrics, who: str) -> OwnMetrics:
        assert self._ours is not None
        kinds, expected = found.kinds, self._ours.kinds
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
        return found

    def _metrics(self, who: str, predictions: np.ndarray | None = None) -> OwnMetrics:
        for file in self._files.values():
            file.flush()
        try:
            function = self.code.load()
            returned = function(**self._arguments(function, who, predictions))
            metrics, values = checked(returned, self._rows)
        except _RefusedError as error:
            raise self._failed(*error.args) from error
        except (Exception, SystemExit) as error:
            fix = "correct the function; see the log for details"
            raise self._failed(self.code.said(error)[:2000], _DICT, fix) from error
        by_row: dict[str, Column] = {}
        for name, column in values.items():
            is_share = ((column == 0) | (column == 1)).all()
            kept = Growing(self._folder / f"{who}-{name}", VALUES_IN_MEMORY // len(values))
            for rows in chunks(self._rows):
                kept.add(column[rows].astype(bool if is_share else np.float64))
            by_row[f"{OWN}{name}"] = kept.finish()
        return OwnMetrics({f"{OWN}{name}": value for name, value in metrics.items()}, by_row)

    def _arguments(
        self, function: Callable[..., Any], who: str, predictions: np.ndarray | None
    ) -> dict[str, Any]:
        """Return the arguments that the function takes."""
        taken = inspect.signature(function).parameters
        free = any(it.kind is it.VAR_KEYWORD for it in taken.values())
        classes = list(self._data.schema.classes)
        regression = not classes
        weighted = (self._folder / "weights").stat().st_size > 0
        makers: dict[str, Callable[[], Any]] = {
            "labels": lambda: self._array("labels", np.float32 if regression else np.int64),
            "predictions": lambda: (
                predictions
                if predictions is not None
                else self._array(who, np.float32, 0 if regression else len(classes))
            ),
            "weights": lambda: self._array("weights", np.float32) if weighted else None,
            "features": self._features,
            "classes": lambda: classes,
        }
        return {name: make() for name, make in makers.items() if name in taken or free}

    def _array(self, name: str, kind: Any, width: int = 0) -> np.ndarray:
        """Return an array of all rows, which is read from its file where it is used."""
        shape = (self._rows, width) if width else (self._rows,)
        return np.memmap(self._folder / name, kind, "r", shape=shape)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _features(self) -> Columns:
        columns = self._data.schema.names
        if self._packed:
            rows = self._array("features", np.float32, len(columns))
            return Columns(columns, lambda name: rows[:, columns.index(name)])
        if self._data.raw:
            return Columns(columns, partial(of_parquet, list(map(str, self._data.raw))))
        raise _RefusedError(
            "the argument features, but the rows are images",
            "only labels, predictions, weights and classes",
            "remove the argument features",
        )

    def _failed(self, received: str, expected: str, fix: str) -> DataError:
        what = f"{PATH} {self.code.module}:{self.code.function} failed"
        return DataError(Problem(what, received, expected, fix, PATH))


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
        fix = "return one value per row, in the rows' order"
        raise _RefusedError(f"{name} has {size}", expected, fix)
    wrong = np.flatnonzero(~np.isfinite(found))
    if len(wrong):
        raise _RefusedError(
            f"{name} is not finite in {len(wrong):,} of {counted(rows, 'row')}, first in row"
            f" {wrong[0] + 1:,}",
            "a finite number for each row; the first row is row 1",
            "give these rows a number, for instance 0",
        )
    return found
