"""Permutation importance: how much worse a model gets if a column no longer belongs to its rows.

The values of one column are shuffled among the rows of a sample, and the sample is predicted again
(Breiman 2001). The importance is the loss of the metric, the mean over several shuffles.

Its interval says what other test rows would show. A row takes part in two ways: its own prediction
changes, and another row gets its value. So its influence is that of the change of its own row, plus
that of the row which got its value, each the mean over the shuffles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.compare import LEAST_ROWS
from kfp_tfjob.judging.estimates import Estimate, Measured, t_quantile
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import BATCH, Batch

_SAMPLE, _LEAST = 2000, 100  # rows of a sample
SEED = 7
SHUFFLES = 5  # of each column
_VALUES = 4_000_000  # of all columns and rows that are predicted at once, and of a sample
# Predictions differ in their last bits with the size of a batch; that is no importance.
_ROUNDING = 1e-6


class Predicts(Protocol):
    """A loaded model."""

    def predict(self, batch: Batch) -> Predictions:
        """Predict rows."""
        ...


@dataclass(frozen=True)
class Importances:
    """How much each column matters to a model.

    Attributes:
        metric: The metric that was measured.
        value: Its value on the sample.
        rows: The rows of the sample.
        shuffles: How often each column was shuffled at least.
        columns: The loss of the metric by column, the greatest first.
        left: The columns for which there was no time.
    """

    metric: str
    value: float
    rows: int
    shuffles: int
    columns: dict[str, Measured]
    left: tuple[str, ...] = ()


def sample_rows(columns: int) -> int:
    """Return how many rows a sample of this many columns should have."""
    return max(min(_SAMPLE, _VALUES // max(columns, 1)), _LEAST)


def importances(
    model: Predicts,
    sample: Batch,
    columns: Sequence[str],
    metric: str,
    confidence: float,
    seconds: float,
    classes: list[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Importances | None:
    """Measure how much each column matters.

    Args:
        model: The model.
        sample: Test rows.
        columns: The columns, in the order of the schema.
        metric: A metric of the task.
        confidence: The confidence of the two-sided intervals.
        seconds: When to stop. Every column is shuffled once, then each a second time, and so on, so
            less time means wider intervals first.
        classes: The names of the classes, for per-class metrics.
        clock: Seconds since some moment.

    Returns:
        The importances; None if the rows do not define the metric.

    Raises:
        DataError: The model failed.
    """
    end = clock() + seconds
    before = Measures(model.predict(sample), classes).estimate(metric)
    if not math.isfinite(before.value) or before.rule is None or before.support < LEAST_ROWS:
        return None
    rows = len(sample.labels)
    found = {name: _Shuffled(rows) for name in columns}
    width = max(1, min(BATCH // rows, _VALUES // (rows * len(columns))))
    for turn, names in _turns(columns, width):
        orders = {
            name: np.random.default_rng([SEED, turn, columns.index(name)]).permutation(rows)
            for name in names
        }
        predicted = model.predict(_shuffled(sample, orders))
        for place, (name, order) in enumerate(orders.items()):
            part = predicted[place * rows : (place + 1) * rows]
            found[name].add(before, Measures(part, classes).estimate(metric), order)
        if clock() >= end:
            break
    measured = {name: one for name, one in found.items() if one.losses}
    about = (before.sign, before.support, confidence)
    shown = {name: one.measured(*about) for name, one in measured.items()}
    return Importances(
        metric,
        before.value,
        rows,
        min((len(one.losses) for one in measured.values()), default=0),
        dict(sorted(shown.items(), key=lambda item: -item[1].value)),
        tuple(name for name in columns if name not in measured),
    )


class _Shuffled:
    """What the shuffles of one column have shown.

    Args:
        rows: The rows of the sample.
    """

    def __init__(self, rows: int) -> None:
        self.losses: list[float] = []
        self._pull = np.zeros(rows)

    def add(self, before: Estimate, after: Estimate, order: NDArray[np.int64]) -> None:
        """Add a shuffle; row i got the value of row order[i]."""
        if not math.isfinite(after.value) or after.rule is None:
            return
        self.losses.append(before.value - after.value)
        change = before.influence - after.influence
        self._pull += change
        self._pull[order] += change

    def measured(self, sign: int, support: int, confidence: float) -> Measured:
        """Return the mean loss and its interval."""
        value = sign * float(np.mean(self.losses))
        pull = self._pull / len(self.losses)
        error = math.sqrt(float(np.einsum("i,i->", pull, pull))) / len(pull)
        if abs(value) < _ROUNDING and error < _ROUNDING:
            return Measured(0.0, 0.0, 0.0)
        reach = t_quantile((1 + confidence) / 2, support - 1) * error
        return Measured(value, value - reach, value + reach)


def _turns(columns: Sequence[str], width: int) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the number of a shuffle, and the columns to shuffle at once."""
    for turn in range(SHUFFLES):
        for first in range(0, len(columns), width):
            yield turn, columns[first : first + width]


def _shuffled(sample: Batch, orders: dict[str, NDArray[Any]]) -> Batch:
    """Return the sample once for each shuffled column, one below the other."""
    copies = len(orders)
    features = {name: np.tile(values, copies) for name, values in sample.features.items()}
    rows = len(sample.labels)
    for place, (name, order) in enumerate(orders.items()):
        features[name][place * rows : (place + 1) * rows] = sample.features[name][order]
    weights = None if sample.weights is None else np.tile(sample.weights, copies)
    return Batch(features, np.tile(sample.labels, copies), weights)
