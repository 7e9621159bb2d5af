"""A model's predictions for the test rows, by row, and how they are collected by batch.

Every metric is computed from these rows at the end, so no result depends on the batch size. Two
compared models predict the same rows in the same order. Many rows are in files (columns.py), so
readers read them in chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfp_tfjob.judging.columns import (
    CHUNK,
    VALUES_IN_MEMORY,
    Column,
    Growing,
    chunks,
)

# The AUC needs the scores of every class: 4 bytes per row and class. With more classes than this,
# only the data for the other metrics is kept, and there is no AUC.
MOST_SCORED_CLASSES = 30
MOST_RANK = 255
# The float32 epsilon, at which scikit-learn clips too: log(0) would outweigh all other rows.
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
_NO_COLUMNS = ("classes", "own", "minimize")
_Kind = TypeVar("_Kind", bound="_ByRow")


@dataclass(frozen=True)
class _ByRow:
    """What every kind of predictions has.

    Attributes:
        labels: (rows,) the true class or value of each row.
        weights: (rows,) float32, how much each row counts; None where all count the same.
        own: By the name of a metric of the user's own, its (rows,) values: float64, or bool where
            all are 0 or 1.
        minimize: Those of them for which a lower value is better.
    """

    labels: Column
    weights: Column | None
    own: Mapping[str, Column] = field(default_factory=dict, kw_only=True)
    minimize: frozenset[str] = field(default=frozenset(), kw_only=True)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def __getitem__(self: _Kind, rows: slice) -> _Kind:
        """Return consecutive rows, in memory."""
        return self._each(lambda column: column[rows])

    def chosen(self: _Kind, rows: NDArray[Any]) -> _Kind:
        """Return the rows with these numbers, or where this is true; of predictions in memory."""
        return self._each(lambda column: np.asarray(column)[rows])

    def chunks(self: _Kind, size: int = CHUNK) -> Iterator[_Kind]:
        """Yield all rows in order, in memory."""
        in_memory = (isinstance(column, np.ndarray) for column in self.columns().values())
        if self.rows <= size and all(in_memory):
            yield self
            return
        for rows in chunks(self.rows, size):
            yield self[rows]

    def columns(self) -> dict[str, Column]:
        """Return the columns by name."""
        found = {
            it.name: value
            for it in fields(self)
            if it.name not in _NO_COLUMNS and (value := getattr(self, it.name)) is not None
        }
        return {**found, **self.own}

    def with_columns(self: _Kind, columns: Mapping[str, Column]) -> _Kind:
        """Return the same with other rows: with what `columns` returns for them."""
        if not self.own:
            return replace(self, **columns)
        others = {name: value for name, value in columns.items() if name not in self.own}
        return replace(self, own={name: columns[name] for name in self.own}, **others)

    def with_own(self: _Kind, names: Collection[str]) -> _Kind:
        """Return the same with no other metrics of the user's own than these."""
        return replace(self, own={it: self.own[it] for it in self.own if it in names})

    def _each(self: _Kind, change: Any) -> _Kind:
        return self.with_columns({name: change(value) for name, value in self.columns().items()})

    def own_values(self, metric: str) -> NDArray[np.float64]:
        """Return the (rows,) values of a metric of the user's own."""
        return np.asarray(self.own[metric]).astype(np.float64)

    @cached_property
    def not_finite(self) -> tuple[int, int]:
        """(the number of rows whose prediction is not a number, the first of them from 1)."""
        found, first, before = 0, 0, 0
        for chunk in self.chunks():
            wrong = np.flatnonzero(~np.isfinite(chunk.shown))
            if len(wrong) and not found:
                first = before + int(wrong[0]) + 1
            found += len(wrong)
            before += chunk.rows
        return found, first

    @property
    def shown(self) -> Any:
        """(rows,) what is not finite where the prediction is not."""
        raise NotImplementedError

    @cached_property
    def constant(self) -> bool:
        """Whether there are several rows, and the prediction is the same for all of them."""
        first: Any = None
        for chunk in self.chunks():
            values = chunk.answers
            first = values[:1] if first is None else first
            if not (values == first).all():
                return False
        return self.rows > 1

    @property
    def answers(self) -> Any:
        """(rows, ...) what the model predicts."""
        raise NotImplementedError

    @property
    def finite(self) -> bool:
        """Whether every prediction is finite."""
        return self.not_finite[0] == 0


@dataclass(frozen=True)
class ClassPredictions(_ByRow):
    """A classifier on the test rows.

    Attributes:
        labels: (rows,) the true class of each row, in the smallest type that holds the classes.
        predicted: (rows,) the most probable class; the first one in a tie.
        true_probability: (rows,) float32, the probability given to the true class; NaN where any
            probability of the row is not a number.
        scores: float32, (rows, 1) with the probability of class 1 for two classes,
            (rows, classes) for up to 30 classes, (rows, 0) for more.
        classes: The number of classes.
        confidence: (rows,) float32, the highest probability; None for two classes.
        squares: (rows,) float32, the sum of the squared probabilities; None for two classes.
        rank: (rows,) uint8, how many classes rank before the true one, at most 255; in a tie the
            later class is first, as in scikit-learn. None for two classes.
    """

    predicted: Column
    true_probability: Column
    scores: Column
    classes: int
    confidence: Column | None = None
    squares: Column | None = None
    rank: Column | None = None

    @classmethod
    def of(
        cls, labels: ArrayLike, probabilities: ArrayLike, weights: ArrayLike | None = None
    ) -> ClassPredictions:
        """Build from (rows,) labels, (rows, classes) probabilities and (rows,) weights."""
        probabilities = np.asarray(probabilities, np.float32)
        rows, classes = probabilities.shape
        small = np.min_scalar_type(classes - 1)
        labels = np.asarray(labels).astype(small)
        every = np.arange(rows)
        true = probabilities[every, labels]
        predicted = probabilities.argmax(axis=1)
        more: dict[str, Any] = {}
        if classes == 2:
            scores = probabilities[:, 1:]
        else:
            scores = probabilities[:, : classes if classes <= MOST_SCORED_CLASSES else 0]
            before = (probabilities > true[:, None]).sum(axis=1)
            later = np.arange(classes) > labels[:, None]
            before += ((probabilities == true[:, None]) & later).sum(axis=1)
            more = {
                "confidence": probabilities[every, predicted],
                "squares": np.einsum("ij,ij->i", probabilities, probabilities),
                "rank": np.minimum(before, MOST_RANK).astype(np.uint8),
            }
        true[~np.isfinite(probabilities).all(axis=1)] = np.nan
        return cls(
            labels,
            None if weights is None else np.asarray(weights, np.float32),
            predicted.astype(small),
            true,
            scores.copy(),
            classes,
            **more,
        )

    @property
    def shown(self) -> Any:
        """(rows,) not finite where the prediction is not."""
        return self.true_probability

    @property
    def answers(self) -> Any:
        """(rows, scores) the probabilities that are kept; (rows, 2) for more than 30 classes."""
        if self.confidence is None or self.scores.shape[1]:
            return np.asarray(self.scores)
        return np.stack([np.asarray(self.predicted), np.asarray(self.confidence)], axis=1)

    @property
    def losses(self) -> NDArray[np.float64]:
        """(rows,) the log loss of each row, in nats."""
        probability = np.asarray(self.true_probability).astype(np.float64)
        return -np.log(np.clip(probability, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY))

    @property
    def square_errors(self) -> NDArray[np.float64]:
        """(rows,) the Brier score of each row.

        Two classes: the squared error of the probability of class 1. More: its sum over classes.
        """
        if self.classes == 2:
            score = np.asarray(self.scores)[:, 0].astype(np.float64)
            return (score - np.asarray(self.labels)) ** 2
        true = np.asarray(self.true_probability).astype(np.float64)
        return np.asarray(self.squares) + 1.0 - 2 * true

    @property
    def cells(self) -> NDArray[np.int64]:
        """(rows,) the place of each row in the flat confusion matrix."""
        return np.asarray(self.labels).astype(np.int64) * self.classes + np.asarray(self.predicted)

    def scored_classes(self) -> Iterator[int]:
        """Yield every class with a curve; of two classes, only class 1."""
        first = 1 if self.classes == 2 else 0
        width = self.scores.shape[1]  # type: ignore[attr-defined]
        yield from range(first, first + width)

    def score(self, index: int) -> NDArray[np.float32]:
        """Return the (rows,) scores of a class with a curve."""
        return np.asarray(self.scores)[:, 0 if self.classes == 2 else index]


@dataclass(frozen=True)
class ValuePredictions(_ByRow):
    """A regression on the test rows.

    Attributes:
        labels: (rows,) float32, the true values.
        values: (rows,) float32, the predicted values.
    """

    values: Column

    @classmethod
    def of(
        cls, labels: ArrayLike, values: ArrayLike, weights: ArrayLike | None = None
    ) -> ValuePredictions:
        """Build from (rows,) labels, values and weights."""
        return cls(
            np.asarray(labels, np.float32),
            None if weights is None else np.asarray(weights, np.float32),
            np.asarray(values, np.float32),
        )

    @property
    def shown(self) -> Any:
        """(rows,) not finite where the prediction is not."""
        return self.values

    @property
    def answers(self) -> Any:
        """(rows,) the predicted values."""
        return np.asarray(self.values)

    @property
    def errors(self) -> NDArray[np.float64]:
        """(rows,) predicted minus true."""
        return np.asarray(self.values).astype(np.float64) - np.asarray(self.labels)


Predictions = ClassPredictions | ValuePredictions
_Collected = TypeVar("_Collected", ClassPredictions, ValuePredictions)


class Collector(Generic[_Collected]):
    """Collects predictions by batch; many rows go to files.

    Args:
        folder: Where the files are; None to keep all rows in memory.
        most: The most values of a column to keep in memory.
    """

    def __init__(self, folder: Path | None = None, most: int = VALUES_IN_MEMORY) -> None:
        self._folder, self._most = folder, most
        self._columns: dict[str, Growing] = {}
        self._last: _Collected | None = None

    def add(self, part: _Collected) -> None:
        """Add the predictions of a batch."""
        self._last = part
        for name, values in part.columns().items():
            if name not in self._columns:
                # own/NAME is a file in a folder
                path = self._folder / name if self._folder else None
                self._columns[name] = Growing(path, self._most)
            self._columns[name].add(np.asarray(values))

    def finish(self) -> _Collected | None:
        """Return the predictions of all rows; None if there was no batch."""
        if self._last is None:
            return None
        columns = {name: column.finish() for name, column in self._columns.items()}
        return self._last.with_columns(columns)
