"""Combines a model's predictions with its metrics on the test rows."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_tfjob.components.evaluate.metrics import MOST_SHOWN_CLASSES, Measured, summary
from kfp_tfjob.components.evaluate.predictions import Predictions


@dataclass(frozen=True)
class Scored:
    """A model's predictions for the test rows, and their metrics.

    Attributes:
        predictions: For all test rows.
        measured: Its metrics.
        classes: Precision, recall and F1 of each class, up to 30 classes.
    """

    predictions: Predictions
    measured: dict[str, Measured]
    classes: dict[str, Measured]

    @classmethod
    def of(cls, predictions: Predictions, confidence: float, classes: list[str]) -> Scored:
        """Measure a model."""
        each_class = len(classes) <= MOST_SHOWN_CLASSES
        measured = summary(predictions, confidence, classes, each_class)
        return cls(
            predictions,
            {name: value for name, value in measured.items() if "/" not in name},
            {name: value for name, value in measured.items() if "/" in name},
        )
