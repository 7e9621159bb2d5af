"""Sample models. Your own model looks the same: a function that returns a compiled model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.coding import Column
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset

# Units of the hidden layers, dropout, learning rate.
_PLAIN = ((64, 64), 0.0, 1e-3)
_MIXED = ((128, 64), 0.4, 2e-3)


def mlp(
    dataset: Dataset,
    hidden: Sequence[int] | None = None,
    dropout: float | None = None,
    learning_rate: float | None = None,
) -> keras.Model:
    """Build a multi-layer perceptron for a table.

    The defaults are 64 and 64 units without dropout, and a rate of 0.001. In a classification whose
    table has more than numbers, or gaps, they are 128 and 64 units, 0.4 and 0.002: one-hot vectors
    make overfitting easy (benchmarks/tables.py).

    Args:
        dataset: The training data.
        hidden: Units of each hidden layer.
        dropout: Share of units to drop after each hidden layer, 0 for none.
        learning_rate: Learning rate of Adam.

    Returns:
        A compiled model from (batch, features) to (batch, classes) logits or (batch, 1) values.
    """
    is_mixed = dataset.coding is not None and dataset.task == CLASSIFICATION
    units, share, rate = _MIXED if is_mixed else _PLAIN
    units = units if hidden is None else hidden
    share = share if dropout is None else dropout
    inputs = keras.Input((dataset.num_features,))
    x = dataset.encode(inputs)
    for number in units:
        x = keras.layers.Dense(int(number), activation="relu")(x)
        if share:
            x = keras.layers.Dropout(share)(x)
    return _compiled(dataset, inputs, x, rate if learning_rate is None else learning_rate)


def cnn(
    dataset: Dataset,
    height: int = 0,
    width: int = 0,
    channels: int = 1,
    filters: Sequence[int] = (16, 32),
    dense: int = 64,
    dropout: float = 0.0,
    learning_rate: float = 1e-3,
) -> keras.Model:
    """Build a small convolutional network for images; the columns are the pixels, row by row.

    Args:
        dataset: The training data.
        height: Height in pixels; 0 for a square image.
        width: Width in pixels; 0 for a square image.
        channels: Values per pixel, side by side.
        filters: Filters of each convolution; a pooling layer after it halves the image.
        dense: Units of the hidden layer before the output.
        dropout: Share of its units to drop, 0 for none.
        learning_rate: Learning rate of Adam.

    Returns:
        A compiled model from (batch, features) to (batch, classes) logits or (batch, 1) values.

    Raises:
        ConfigurationError: The columns do not form such an image, or are not all numbers.
    """
    if dataset.not_numbers:
        raise ConfigurationError(_no_pixels(dataset.not_numbers))
    height, width = _image_size(dataset.num_features, height, width, channels)
    inputs = keras.Input((dataset.num_features,))
    x = dataset.encode(inputs)
    x = keras.layers.Reshape((height, width, channels))(x)
    for number in filters:
        x = keras.layers.Conv2D(int(number), 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D(2, padding="same")(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(int(dense), activation="relu")(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return _compiled(dataset, inputs, x, learning_rate)


def _compiled(
    dataset: Dataset, inputs: keras.KerasTensor, x: keras.KerasTensor, learning_rate: float
) -> keras.Model:
    # The output stays float32 under mixed precision: 16 bits are too coarse for a loss.
    if dataset.task == CLASSIFICATION:
        outputs = keras.layers.Dense(dataset.num_classes, dtype="float32")(x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"]
    else:
        x = keras.layers.Dense(1, dtype="float32")(x)
        scale = keras.layers.Rescaling(dataset.label_std, dataset.label_mean, dtype="float32")
        outputs, loss, metrics = scale(x), "mean_squared_error", ["mean_absolute_error"]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(learning_rate), loss=loss, metrics=metrics)
    return model


def _no_pixels(columns: Sequence[Column]) -> Problem:
    return Problem(
        "the columns do not form an image, because some are no numbers",
        received=listed([f"{column.name} ({column.kind})" for column in columns], 10),
        expected="a number in every column, the value of one pixel",
        fix="use kfp_tfjob.trainer.models:mlp, or leave these columns out with data_options.drop",
        path="model_code",
        suggestion="kfp_tfjob.trainer.models:mlp",
    )


def _image_size(features: int, height: int, width: int, channels: int) -> tuple[int, int]:
    pixels = features // max(channels, 1)
    if not height and not width:
        height = width = math.isqrt(pixels)
    elif not height or not width:
        height, width = height or pixels // width, width or pixels // height
    if channels < 1 or height < 1 or width < 1 or height * width * channels != features:
        raise ConfigurationError(
            Problem(
                "the columns do not form an image of this size",
                received=f"{features} columns for {height} x {width} pixels of {channels} channels",
                expected="height x width x channels columns; a square by default",
                fix="give height, width and channels in model_hyperparameters, or use"
                " kfp_tfjob.trainer.models:mlp",
            )
        )
    return height, width
