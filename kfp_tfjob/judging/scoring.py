"""Scores model, champion and trivial baseline on the same test rows in one pass."""

from __future__ import annotations

import numpy as np

from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.statistics import WeightedLabel
from kfp_tfjob.judging.champion_scoring import Opponent
from kfp_tfjob.judging.model import predictions_of
from kfp_tfjob.judging.own_metrics import Evaluator
from kfp_tfjob.judging.predictions import Predictions, joined
from kfp_tfjob.judging.rows import Batch, TestData
from kfp_tfjob.judging.slices import Slices
from kfp_tfjob.storage.errors import DataError, Problem

_ALONE = 4  # rows
_CLOSE = 0.05  # of the range of the answers: other kernels compute a batch of another size


def score(
    data: TestData,
    challenger: ServedModel,
    opponent: Opponent | None,
    slices: Slices,
    own: Evaluator | None = None,
) -> tuple[Predictions, Predictions]:
    """Score all test rows in one pass.

    Args:
        data: The test rows.
        challenger: The model under evaluation.
        opponent: The champion, which keeps its own predictions; None if there is none.
        slices: Where each row finds its slices.
        own: The user's evaluator, which gets every batch; None without one.

    Returns:
        The model's predictions, and those of the trivial baseline.

    Raises:
        DataError: The rows do not match their schema, or the model failed, or it answers a row
            that is alone differently.
    """
    ours: list[Predictions] = []
    trivial: list[Predictions] = []
    for number, batch in enumerate(data.batches()):
        outputs = challenger.predict(batch.features)
        if not number:
            _check_alone(challenger, batch, outputs)
        ours.append(predictions_of(data.schema, batch, outputs))
        trivial.append(_baseline(data, batch))
        if own:
            own.add(batch, outputs)
        slices.add(batch)
        if opponent:
            opponent.predict(batch, outputs)
    return joined(ours), joined(trivial)


def _check_alone(model: ServedModel, batch: Batch, outputs: np.ndarray) -> None:
    """Reject a model whose answer for a row depends on the rows beside it in a request."""
    for at in range(min(_ALONE, len(outputs))):
        row = {name: values[at : at + 1] for name, values in batch.features.items()}
        alone, again = (model.predict(row)[0] for _ in range(2))
        room = _CLOSE * np.ptp(outputs) + 1e-5 * np.abs(outputs).max()
        if np.array_equal(alone, again) and (np.abs(alone - outputs[at]) > room).any():
            raise DataError(
                Problem(
                    "the model's prediction for a row depends on the other rows in the batch",
                    received=f"test row {at + 1}: {alone} alone, {outputs[at]} among"
                    f" {len(outputs)} rows",
                    expected="the same prediction for a row, regardless of the other rows in a"
                    " request",
                    fix="make sure that no layer computes over axis 0 during prediction, and"
                    " export the model with training=False",
                )
            )


def trivial_outputs(data: TestData) -> np.ndarray:
    """Return what the baseline predicts for each row: (classes,) shares, or () a mean."""
    found = _of_training_rows(data)
    return found / found.sum() if data.schema.classes else found


def _baseline(data: TestData, batch: Batch) -> Predictions:
    row = trivial_outputs(data)
    outputs = np.broadcast_to(row.astype(np.float32), (len(batch.labels), *row.shape))
    return predictions_of(data.schema, batch, outputs)


def _of_training_rows(data: TestData) -> np.ndarray:
    """Return the (classes,) rows or weights of each class, or () the mean of the label."""
    statistics = data.statistics
    # Where rows have weights, the best constant is a weighted one.
    train = statistics.weight.splits.get("train") if statistics.weight else None
    weighted, plain = train.label if train else WeightedLabel(), statistics.label
    if not data.schema.classes:
        mean = plain.train.mean if plain.train else None
        return np.array(mean if weighted.mean is None else weighted.mean, np.float64)
    counts = weighted.counts or (plain.counts or {})["train"]
    return np.array([counts[name] for name in data.schema.classes], np.float64)
