"""Calls a model for the outputs of rows, and turns them into probabilities.

Called by the training step, the tests before training, and the export.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional  # not in the public API

from .dataset import Dataset


def predict(model: keras.Model, rows: Any, training: bool = False) -> Any:
    """Return the output of a model, as `model.fit` and `model.evaluate` compute it.

    Args:
        model: The model.
        rows: (rows, *input_shape) float32.
        training: Whether this is a training step.
    """
    return model(rows, training=training) if model._call_has_training_arg else model(rows)


def output_spec(model: keras.Model, dataset: Dataset) -> Any:
    """Return the output of a built model as a KerasTensor (None, columns).

    If the model has several outputs, or one that is not a tensor, the structure is the model's.
    """
    spec = model.compute_output_spec(keras.KerasTensor((None, *dataset.input_shape)))
    # A call of the model would not return a list of one output.
    is_list_of_one = isinstance(model, Functional) and isinstance(spec, list) and len(spec) == 1
    return spec[0] if is_list_of_one else spec


def to_probabilities(outputs: tf.Tensor, logits: bool) -> tf.Tensor:
    """Return (rows, classes) float32 probabilities.

    Args:
        outputs: (rows, classes) outputs of a model, or (rows, 1) of the second of two classes.
        logits: Whether they are logits.
    """
    scores = tf.cast(outputs, tf.float32)
    if scores.shape[1] == 1:
        positive = tf.sigmoid(scores) if logits else scores
        return tf.concat([1 - positive, positive], axis=1)
    return tf.nn.softmax(scores) if logits else scores
