"""Keeps some of the test rows while a model scores them, so that they are read once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import Batch


class Sample:
    """Keeps rows that are chosen at random before the first one is read.

    Args:
        rows: The number of rows of the split.
        most: The most rows to keep.
        seed: The same seed keeps the same rows.
    """

    def __init__(self, rows: int, most: int, seed: int) -> None:
        self._numbers = np.arange(rows)
        if rows > most:
            chosen = np.random.default_rng(seed).choice(rows, most, replace=False, shuffle=False)
            self._numbers = np.sort(chosen)
        self._parts: list[Batch] = []
        self._before = 0

    def add(self, batch: Batch, predictions: Predictions, outputs: NDArray[Any]) -> None:
        """Keep the rows of a batch that were chosen."""
        end = self._before + predictions.rows
        first, last = np.searchsorted(self._numbers, [self._before, end])
        if first < last:
            self._parts.append(chosen_rows(batch, self._numbers[first:last] - self._before))
        self._before = end

    def batch(self) -> Batch | None:
        """Return the kept rows; None if there is none."""
        if not self._parts:
            return None
        first = self._parts[0]
        features = {
            name: np.concatenate([part.features[name] for part in self._parts])
            for name in first.features
        }
        weights = None
        if first.weights is not None:
            parts = [part.weights for part in self._parts if part.weights is not None]
            weights = np.concatenate(parts)
        return Batch(features, np.concatenate([part.labels for part in self._parts]), weights)


def chosen_rows(batch: Batch, rows: NDArray[Any]) -> Batch:
    """Return the rows with these numbers, in memory."""
    picked = {name: np.asarray(values)[rows] for name, values in batch.features.items()}
    weights = None if batch.weights is None else np.asarray(batch.weights)[rows]
    return Batch(picked, np.asarray(batch.labels)[rows], weights)
