"""A model's predictions for the test rows, by row.

Every metric is computed from these rows at the end, so no result depends on the batch size. Two
compared models predict the same rows in the same order. They are in memory: 10 bytes a row of two
classes, 140 of 30 classes. Metrics read them in chunks, whose temporary arrays are larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The AUC needs the scores of every class: 4 bytes per row and class. With more classes than this,
# only the data for the other metrics is kept, and there is no AUC.
MOST_SCORED_CLASSES = 30
MOST_RANK = 255
# The float32 epsilon, at which scikit-learn clips too: log(0) would outweigh all other rows.
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
CHUNK = 262_144  # rows that are computed at once: 2 MB for each float64 array
_Kind = TypeVar("_Kind", bound="_ByRow")
Column = NDArray[Any]


@dataclass(frozen=True)
class _ByRow:
    """What every kind of predictions has.

    Attributes:
        labels: (rows,) the true class or value of each row.
        weights: (rows,) float32, how much each row counts; None where all count the same.
        own: By the name of a user's own metric, its (rows,) values: float64, or bool where
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

    def __getitem__(self: _Kind, rows: slice | NDArray[Any]) -> _Kind:
        """Return some rows: consecutive ones, those with these numbers, or where this is true."""
        columns = {name: column[rows] for name, column in self.columns().items()}
        own = {name: column[rows] for name, column in self.own.items()}
        return replace(self, own=own, **columns)

    def chunks(self: _Kind, size: int = CHUNK) -> Iterator[_Kind]:
        """Yield all rows in order."""
        for start in range(0, self.rows, size):
            yield self[start : start + size]

    def columns(self) -> dict[str, Column]:
        """Return the columns by name, but for those of the user's own metrics."""
        values = {it.name: getattr(self, it.name) for it in fields(self)}
        return {name: it for name, it in values.items() if isinstance(it, np.ndarray)}

    def own_values(self, metric: str) -> NDArray[np.float64]:
        """Return the (rows,) values of a user's own metric."""
        return self.own[metric].astype(np.float64)

    @cached_property
    def not_finite(self) -> tuple[int, int]:
        """(the number of rows whose prediction is not a number, the first of them from 1)."""
        wrong = np.flatnonzero(~np.isfinite(self.shown))
        return len(wrong), int(wrong[0]) + 1 if len(wrong) else 0

    @property
    def shown(self) -> Column:
        """(rows,) what is not finite where the prediction is not."""
        raise NotImplementedError

    @property
    def constant(self) -> bool:
        """Whether there are several rows, and the prediction is the same for all of them."""
        return self.rows > 1 and bool((self.answers == self.answers[:1]).all())

    @property
    def answers(self) -> Column:
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
    def shown(self) -> Column:
        """(rows,) not finite where the prediction is not."""
        return self.true_probability

    @property
    def answers(self) -> Column:
        """(rows, scores) the probabilities that are kept; (rows, 2) for more than 30 classes."""
        if self.confidence is None or self.scores.shape[1]:
            return self.scores
        return np.stack([self.predicted, self.confidence], axis=1)

    @property
    def losses(self) -> NDArray[np.float64]:
        """(rows,) the log loss of each row, in nats."""
        return log_losses(self.true_probability.astype(np.float64))

    @property
    def square_errors(self) -> NDArray[np.float64]:
        """(rows,) the Brier score of each row.

        Two classes: the squared error of the probability of class 1. More: its sum over classes.
        """
        if self.classes == 2:
            return (self.scores[:, 0].astype(np.float64) - self.labels) ** 2
        assert self.squares is not None
        return self.squares + 1.0 - 2 * self.true_probability.astype(np.float64)

    @property
    def cells(self) -> NDArray[np.int64]:
        """(rows,) the place of each row in the flat confusion matrix."""
        return self.labels.astype(np.int64) * self.classes + self.predicted

    def scored_classes(self) -> Iterator[int]:
        """Yield every class with a curve; of two classes, only class 1."""
        first = 1 if self.classes == 2 else 0
        yield from range(first, first + self.scores.shape[1])

    def score(self, index: int) -> NDArray[np.float32]:
        """Return the (rows,) scores of a class with a curve."""
        return self.scores[:, 0 if self.classes == 2 else index]


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
    def shown(self) -> Column:
        """(rows,) not finite where the prediction is not."""
        return self.values

    @property
    def answers(self) -> Column:
        """(rows,) the predicted values."""
        return self.values

    @property
    def errors(self) -> NDArray[np.float64]:
        """(rows,) predicted minus true."""
        return self.values.astype(np.float64) - self.labels


def log_losses(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log loss of true classes with these probabilities, in nats."""
    return -np.log(np.clip(probabilities, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY))


Predictions = ClassPredictions | ValuePredictions


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of all batches."""
    columns = [part.columns() for part in parts]
    return replace(
        parts[0], **{name: np.concatenate([it[name] for it in columns]) for name in columns[0]}
    )
