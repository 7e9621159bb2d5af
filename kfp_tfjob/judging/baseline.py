"""The trivial baseline: a model that ignores the columns and gives every row the same outputs.

For classes, these are the shares of the classes in train; for a regression, its mean. A model must
beat it, because a model that does not has learned nothing from the columns. Called by scoring.py
for the predictions, and by judge.py for the outputs of a single row.
"""

from __future__ import annotations

import numpy as np

from kfp_tfjob.features.statistics import WeightedLabel

from .model import predictions_of
from .predictions import Predictions
from .rows import Batch, TestData


def baseline_outputs(data: TestData) -> np.ndarray:
    """Return the baseline's prediction for every row: (classes,) shares, or () a mean."""
    totals = _label_totals(data)
    return totals / totals.sum() if data.schema.classes else totals


def baseline_predictions(data: TestData, batch: Batch) -> Predictions:
    """Return the baseline's predictions for a batch of test rows."""
    row = baseline_outputs(data)
    outputs = np.broadcast_to(row.astype(np.float32), (len(batch.labels), *row.shape))
    return predictions_of(data.schema, batch, outputs)


def _label_totals(data: TestData) -> np.ndarray:
    """Return train's (classes,) rows or weights of each class, or () the mean of its label."""
    statistics = data.statistics
    # With row weights, the best constant prediction is a weighted mean.
    train = statistics.weight.splits.get("train") if statistics.weight else None
    weighted, plain = train.label if train else WeightedLabel(), statistics.label
    if not data.schema.classes:
        mean = plain.train.mean if plain.train else None
        return np.array(mean if weighted.mean is None else weighted.mean, np.float64)
    counts = weighted.counts or (plain.counts or {})["train"]
    return np.array([counts[name] for name in data.schema.classes], np.float64)
