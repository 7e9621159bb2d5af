"""Calls a model for the outputs of rows, and turns them into probabilities."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def predict(model: keras.Model, rows: Any, training: bool = False) -> Any:
    """Return the output of a model, as `model.fit` and `model.evaluate` compute it.

    Args:
        model: The model.
        rows: (rows, *input_shape) float32.
        training: Whether this is a training step.
    """
    output = model(rows, training=training) if model._call_has_training_arg else model(rows)
    return unwrapped(output)


def unwrapped(output: Any) -> Any:
    """Return the only tensor of a list, tuple or dict; anything else unchanged.

    `keras.Model(inputs=[x], outputs=[y])` returns a list of one.
    """
    tensors = keras.tree.flatten(output)
    return tensors[0] if len(tensors) == 1 else output


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
