"""Finds the test rows that a model predicts worst, while it scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.predictions import ClassPredictions, Predictions
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.judging.sample import chosen_rows


@dataclass(frozen=True)
class WorstRow:
    """A row with a wrong prediction.

    Attributes:
        number: The number of the row in the test split, from 0.
        error: The log loss, or the absolute error of a regression.
        label: The true class or value.
        predicted: The predicted one.
        probability: Those of the predicted and of the true class; empty for a regression.
        values: The values of the columns that may be shown, by name.
    """

    number: int
    error: float
    label: float
    predicted: float
    probability: tuple[float, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)


class Worst:
    """Keeps the rows with the greatest errors; of equal ones, the first.

    Args:
        features: The columns of the features, in order.
        shown: The columns that may be shown; others are never kept.
        most: The most rows to keep.
    """

    def __init__(self, features: Sequence[str], shown: Sequence[str], most: int) -> None:
        self._columns = {name: at for at, name in enumerate(features) if name in set(shown)}
        self._most = most
        self._before = 0
        self.rows: list[WorstRow] = []

    def add(self, batch: Batch, predictions: Predictions, outputs: NDArray[Any]) -> None:
        """Look at some rows."""
        errors = _errors(predictions)
        if batch.weights is not None:
            errors[np.asarray(batch.weights) == 0] = 0
        least = self.rows[-1].error if len(self.rows) == self._most else 0.0
        found = np.flatnonzero(errors > least)
        if len(found):
            worst = np.sort(found[np.argsort(-errors[found], kind="stable")[: self._most]])
            self.rows += self._rows(batch, predictions, errors, worst)
            self.rows = sorted(self.rows, key=lambda row: (-row.error, row.number))[: self._most]
        self._before += predictions.rows

    def _rows(
        self, batch: Batch, predictions: Predictions, errors: NDArray[Any], worst: NDArray[Any]
    ) -> list[WorstRow]:
        kept, predicted = chosen_rows(batch, worst), predictions.chosen(worst)
        rows = []
        for place, number in enumerate(worst.tolist()):
            answer, probability = _answer(predicted, place)
            rows.append(
                WorstRow(
                    self._before + number,
                    float(errors[number]),
                    kept.labels[place].item(),
                    answer,
                    probability,
                    {name: _value(kept, name, at, place) for name, at in self._columns.items()},
                )
            )
        return rows


def _errors(predictions: Predictions) -> NDArray[np.float64]:
    """Return the (rows,) size of each error; 0 where the prediction is right or no number."""
    if isinstance(predictions, ClassPredictions):
        wrong = np.asarray(predictions.labels) != np.asarray(predictions.predicted)
        errors = np.where(wrong, predictions.losses, 0.0)
    else:
        errors = np.abs(predictions.errors)
    return np.where(np.isfinite(errors), errors, 0.0)


def _answer(predictions: Predictions, place: int) -> tuple[float, tuple[float, ...]]:
    """Return the prediction of a row, and the probabilities of the predicted and the true class."""
    if not isinstance(predictions, ClassPredictions):
        return float(np.asarray(predictions.values)[place]), ()
    true = float(np.asarray(predictions.true_probability)[place])
    confidence = predictions.confidence
    most = 1 - true if confidence is None else float(np.asarray(confidence)[place])
    return int(np.asarray(predictions.predicted)[place]), (most, true)


def _value(batch: Batch, name: str, at: int, place: int) -> Any:
    features = batch.features
    value = features[name][place] if isinstance(features, dict) else features[place, at]
    return value.item() if isinstance(value, np.generic) else value
