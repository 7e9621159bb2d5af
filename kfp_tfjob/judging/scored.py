"""Combines a model's predictions with its metrics on the test rows."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_tfjob.judging.confusion import MOST_SHOWN_CLASSES
from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.options.metric_names import PER_CLASS


@dataclass(frozen=True)
class Scored:
    """A model's predictions for the test rows, and their metrics.

    Attributes:
        measures: The source of its metrics and curves.
        measured: Its metrics.
        classes: Precision, recall and F1 of each class, up to 30 classes.
    """

    measures: Measures
    measured: dict[str, Measured]
    classes: dict[str, Measured]

    @classmethod
    def of(cls, measures: Measures, confidence: float) -> Scored:
        """Measure a model."""
        each_class = len(measures.classes or ()) <= MOST_SHOWN_CLASSES
        measured = measures.summary(confidence, each_class)
        return cls(
            measures,
            {name: value for name, value in measured.items() if not _of_class(name)},
            {name: value for name, value in measured.items() if _of_class(name)},
        )

    @property
    def predictions(self) -> Predictions:
        """Its predictions for all test rows."""
        return self.measures.predictions


def _of_class(metric: str) -> bool:
    return metric.partition("/")[0] in PER_CLASS
