"""Scores model, champion and trivial baseline on the same test rows in one pass.

Both models predict each batch before the next one is read, so the rows are decoded once and need
not fit into memory. Called by judge.py.
"""

from __future__ import annotations

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.served_model import ServedModel

from .baseline import baseline_predictions
from .champion_scoring import ChampionScorer
from .model import predictions_of
from .own_metrics import Evaluator
from .predictions import Predictions, joined
from .rows import Batch, TestData
from .slices import Slices

_CHECKED_ROWS = 4  # one row may be the same in any batch by chance; each takes two predictions
# Of the range of the outputs. TensorFlow uses other kernels for another batch size, which round
# differently.
_CLOSE = 0.05


def score(
    data: TestData,
    challenger: ServedModel,
    champion_scorer: ChampionScorer | None,
    slices: Slices,
    evaluator: Evaluator | None = None,
) -> tuple[Predictions, Predictions]:
    """Score all test rows in one pass.

    Args:
        data: The test rows.
        challenger: The model under evaluation.
        champion_scorer: Scores the champion and collects its predictions; None without a champion.
        slices: Records each row's slices.
        evaluator: The user's evaluator, which collects every batch; None without one.

    Returns:
        The model's predictions, and the trivial baseline's predictions.

    Raises:
        DataError: The rows do not match their schema, the model failed, or its prediction for a row
            depends on the batch.
    """
    parts: list[Predictions] = []
    trivial: list[Predictions] = []
    for number, batch in enumerate(data.batches()):
        outputs = challenger.predict(batch.features)
        if not number:
            _check_batch_independence(challenger, batch, outputs)
        parts.append(predictions_of(data.schema, batch, outputs))
        trivial.append(baseline_predictions(data, batch))
        if evaluator:
            evaluator.add(batch, outputs)
        slices.add(batch)
        if champion_scorer:
            champion_scorer.predict(batch, outputs)
    return joined(parts), joined(trivial)


def _check_batch_independence(model: ServedModel, batch: Batch, outputs: np.ndarray) -> None:
    """Reject a model whose prediction for a row depends on the other rows in the batch."""
    for index in range(min(_CHECKED_ROWS, len(outputs))):
        row = {name: values[index : index + 1] for name, values in batch.features.items()}
        alone, again = (model.predict(row)[0] for _ in range(2))
        tolerance = _CLOSE * np.ptp(outputs) + 1e-5 * np.abs(outputs).max()
        if np.array_equal(alone, again) and (np.abs(alone - outputs[index]) > tolerance).any():
            raise DataError(
                Problem(
                    "the model's prediction for a row depends on the other rows in the batch",
                    received=f"test row {index + 1}: {alone} alone, {outputs[index]} among"
                    f" {len(outputs)} rows",
                    expected="the same prediction for a row, regardless of the other rows in a"
                    " request",
                    fix="make sure that no layer computes over axis 0 during prediction, and"
                    " export the model with training=False",
                    name="prediction-depends-on-batch",
                )
            )
