"""A model's predictions for all test rows, as columns in memory.

Every metric is computed from these columns at the end, so no result depends on the batch size, and
two models are compared row by row. Predictions take 10 bytes a row for two classes and 140 for 30.
Metrics read them in chunks, because their temporary arrays are larger. Filled while `judge` scores
a model; read by all metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The AUC needs the scores of every class: 4 bytes per row and class. With more classes than this,
# only the data for the other metrics is kept, and there is no AUC.
MOST_SCORED_CLASSES = 30
MOST_RANK = 255  # a rank takes one byte of a row; top-k accuracies with a higher k do not exist
# The float32 epsilon, at which scikit-learn clips too: log(0) would outweigh all other rows.
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
CHUNK = 262_144  # rows that are computed at once: 2 MB for each float64 array
_RowPredictionsT = TypeVar("_RowPredictionsT", bound="RowPredictions")
Column = NDArray[Any]


@dataclass(frozen=True)
class RowPredictions:
    """Columns that predictions of every task have.

    Attributes:
        labels: (rows,) the true class or value of each row.
        weights: (rows,) float32, how much each row counts; None where all count the same.
        own: A user metric's (rows,) values by its name: float64, or bool if all are 0 or 1.
        minimize: The user metrics whose lower values are better.
        groups: (rows,) uint64, the hash of each row's group; None where rows are independent.
    """

    labels: Column
    weights: Column | None
    own: Mapping[str, Column] = field(default_factory=dict, kw_only=True)
    minimize: frozenset[str] = field(default=frozenset(), kw_only=True)
    groups: Column | None = field(default=None, kw_only=True)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def __getitem__(self: _RowPredictionsT, rows: slice | NDArray[Any]) -> _RowPredictionsT:
        """Return a subset of rows, by slice, by indices or by a (rows,) mask."""
        columns = {name: column[rows] for name, column in self.columns().items()}
        own = {name: column[rows] for name, column in self.own.items()}
        return replace(self, own=own, **columns)

    def chunks(self: _RowPredictionsT, size: int = CHUNK) -> Iterator[_RowPredictionsT]:
        """Yield all rows in order."""
        if 0 < self.rows <= size:
            yield self  # a copy takes longer than what is done with a small chunk
            return
        for start in range(0, self.rows, size):
            yield self[start : start + size]

    def columns(self) -> dict[str, Column]:
        """Return the columns by name, without user metrics."""
        values = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        return {name: column for name, column in values.items() if isinstance(column, np.ndarray)}

    @cached_property
    def group_numbers(self) -> NDArray[np.int64] | None:
        """(rows,) the number of each row's group, from 0; None where rows are independent."""
        if self.groups is None:
            return None
        return np.unique(self.groups, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def group_count(self) -> int:
        """The number of groups; 0 where rows are independent."""
        numbers = self.group_numbers
        return 0 if numbers is None or not len(numbers) else int(numbers.max()) + 1

    def sums_by_group(self, values: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the (groups,) sums of (rows,) values, which come in the chunks of `chunks`."""
        numbers, sums, start = self.group_numbers, np.zeros(self.group_count), 0
        assert numbers is not None
        for chunk in values:
            end = start + len(chunk)
            sums += np.bincount(numbers[start:end], chunk, len(sums))
            start = end
        return sums

    def own_values(self, metric: str) -> NDArray[np.float64]:
        """Return the (rows,) values of a user metric."""
        return self.own[metric].astype(np.float64)

    @cached_property
    def not_finite(self) -> tuple[int, int]:
        """The number of rows whose prediction is not finite, and the first of them, from 1."""
        wrong = np.flatnonzero(~np.isfinite(self.checked_values))
        return len(wrong), int(wrong[0]) + 1 if len(wrong) else 0

    @property
    def checked_values(self) -> Column:
        """(rows,) a value that is finite exactly if the row's prediction is."""
        raise NotImplementedError

    @property
    def constant(self) -> bool:
        """Whether there are several rows, and the prediction is the same for all of them."""
        return self.rows > 1 and bool((self.outputs == self.outputs[:1]).all())

    @property
    def outputs(self) -> Column:
        """(rows, ...) the model's outputs, as far as they are stored."""
        raise NotImplementedError

    @property
    def finite(self) -> bool:
        """Whether every prediction is finite."""
        return self.not_finite[0] == 0


@dataclass(frozen=True)
class ClassPredictions(RowPredictions):
    """A classifier on the test rows.

    Attributes:
        labels: (rows,) the true class of each row, in the smallest type that holds the classes.
        predicted: (rows,) the most probable class; in a tie, the first of them.
        true_probability: (rows,) float32, the probability given to the true class; NaN where any
            probability of the row is not a number.
        scores: float32, (rows, 1) with the probability of class 1 for two classes,
            (rows, classes) for up to 30 classes, (rows, 0) for more.
        classes: The number of classes.
        confidence: (rows,) float32, the highest probability; None for two classes.
        squares: (rows,) float32, the sum of the squared probabilities; None for two classes.
        rank: (rows,) uint8, the number of classes that rank before the true class, at most 255. In
            a tie, the later class ranks first, as in scikit-learn. None for two classes.
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
        label_type = np.min_scalar_type(classes - 1)
        labels = np.asarray(labels).astype(label_type)
        row_numbers = np.arange(rows)
        true_probability = probabilities[row_numbers, labels]
        predicted = probabilities.argmax(axis=1)
        ranking_columns: dict[str, Any] = {}
        if classes == 2:
            scores = probabilities[:, 1:]
        else:
            scores = probabilities[:, : classes if classes <= MOST_SCORED_CLASSES else 0]
            rank = (probabilities > true_probability[:, None]).sum(axis=1)
            is_later = np.arange(classes) > labels[:, None]
            rank += ((probabilities == true_probability[:, None]) & is_later).sum(axis=1)
            ranking_columns = {
                "confidence": probabilities[row_numbers, predicted],
                "squares": np.einsum("ij,ij->i", probabilities, probabilities),
                "rank": np.minimum(rank, MOST_RANK).astype(np.uint8),
            }
        true_probability[~np.isfinite(probabilities).all(axis=1)] = np.nan
        return cls(
            labels,
            None if weights is None else np.asarray(weights, np.float32),
            predicted.astype(label_type),
            true_probability,
            scores.copy(),
            classes,
            **ranking_columns,
        )

    @property
    def checked_values(self) -> Column:
        """(rows,) not finite where the prediction is not."""
        return self.true_probability

    @property
    def outputs(self) -> Column:
        """(rows, scores) the probabilities that are kept; (rows, 2) for more than 30 classes."""
        if self.confidence is None or self.scores.shape[1]:
            return self.scores
        return np.stack([self.predicted, self.confidence], axis=1)

    @cached_property
    def label_shares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The (classes,) shares of the rows' weight, and the shares of the squared weights.

        Every row must have a weight above 0. The squared weights are in units of the squared mean
        weight, so that both arrays are equal where all rows count the same.
        """
        sums = np.zeros((2, self.classes))
        for chunk in self.chunks():
            weights = weights_of(chunk)
            sums[0] += np.bincount(chunk.labels, weights, self.classes)
            sums[1] += np.bincount(chunk.labels, weights**2, self.classes)
        total = sums[0].sum()
        return sums[0] / total, sums[1] * self.rows / total**2

    @property
    def losses(self) -> NDArray[np.float64]:
        """(rows,) the log loss of each row, in nats."""
        return log_losses(self.true_probability.astype(np.float64))

    @property
    def square_errors(self) -> NDArray[np.float64]:
        """(rows,) the Brier score of each row.

        For two classes, it is the squared error of class 1's probability; for more, the sum of the
        squared errors over all classes.
        """
        if self.classes == 2:
            return (self.scores[:, 0].astype(np.float64) - self.labels) ** 2
        assert self.squares is not None
        return self.squares + 1.0 - 2 * self.true_probability.astype(np.float64)

    @property
    def cells(self) -> NDArray[np.int64]:
        """(rows,) the index of each row's cell in the flat confusion matrix."""
        return self.labels.astype(np.int64) * self.classes + self.predicted

    def scored_classes(self) -> Iterator[int]:
        """Yield the index of every class with a curve; for two classes, only 1."""
        first = 1 if self.classes == 2 else 0
        yield from range(first, first + self.scores.shape[1])

    def score(self, index: int) -> NDArray[np.float32]:
        """Return the (rows,) scores of a class with a curve."""
        return self.scores[:, 0 if self.classes == 2 else index]


@dataclass(frozen=True)
class ValuePredictions(RowPredictions):
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
    def checked_values(self) -> Column:
        """(rows,) not finite where the prediction is not."""
        return self.values

    @property
    def outputs(self) -> Column:
        """(rows,) the predicted values."""
        return self.values

    @cached_property
    def only_label(self) -> float:
        """The label of all rows with a weight above 0; NaN if their labels differ."""
        labels = self.labels if self.weights is None else self.labels[self.weights > 0]
        return float(labels[0]) if len(labels) and (labels == labels[0]).all() else math.nan

    @property
    def errors(self) -> NDArray[np.float64]:
        """(rows,) predicted minus true."""
        return self.values.astype(np.float64) - self.labels


def log_losses(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (rows,) log losses of true classes with these probabilities, in nats."""
    return -np.log(np.clip(probabilities, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY))


Predictions = ClassPredictions | ValuePredictions


def weights_of(chunk: RowPredictions) -> NDArray[np.float64]:
    """Return the (rows,) weights of a chunk; ones where all rows count the same."""
    if chunk.weights is None:
        return np.ones(chunk.rows)
    return chunk.weights.astype(np.float64)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate the predictions of all batches, in order."""
    columns = [part.columns() for part in parts]
    return replace(
        parts[0],
        **{
            name: np.concatenate([part_columns[name] for part_columns in columns])
            for name in columns[0]
        },
    )
