"""Models that are made of their scores, and models that predict the same for every row."""

import numpy as np
from numpy.typing import ArrayLike

from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions


def two_classes(
    labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None
) -> ClassPredictions:
    """Return a model with these probabilities of class 1."""
    scores = np.asarray(scores)
    return ClassPredictions.of(labels, np.stack([1 - scores, scores], axis=1), weights)


def constant_classifier(labels: ArrayLike, counts: ArrayLike) -> ClassPredictions:
    shares = np.asarray(counts) / np.sum(counts)
    return ClassPredictions.of(labels, np.tile(shares, (len(np.asarray(labels)), 1)))


def constant_regression(labels: ArrayLike, mean: float) -> ValuePredictions:
    return ValuePredictions.of(labels, np.full(len(np.asarray(labels)), mean))
