"""Sample models. Your own model looks the same: a function that returns a compiled model.

`mlp` is the default of `model_code`. The run parameters name these functions, like a user's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.coding import Column

from .dataset import CLASSIFICATION, Dataset

# Units of the hidden layers, dropout, learning rate (benchmarks/tables.py).
_PLAIN = ((64, 64), 0.0, 1e-3)
_MIXED = ((128, 64), 0.4, 2e-3)
# So few rows make few steps, in which a smaller rate learns too little to distinguish classes.
_FEW_ROWS, _RATE_OF_FEW = 500, 1e-2

_CNN = "kfp_tfjob.trainer.models:cnn"
# For labels in this range, float32 holds the squares of errors from 1/100 to 1000 deviations. A
# larger square is infinite, and a smaller one is 0 although the model is wrong.
_SMALLEST_LABEL_STD, _LARGEST_LABEL_STD = 1e-16, 1e16
_IMAGES_PROBLEM = Problem(
    "mlp takes the columns of a table, but the rows of this dataset are images",
    expected="a model with an input of the shape dataset.input_shape",
    fix=f"use {_CNN}",
    path="model_code",
    suggestion=_CNN,
    name="input-mismatch",
)
_IMAGE_SIZE_PROBLEM = Problem(
    "the size of images is not a hyperparameter",
    received="height, width or channels in model_hyperparameters",
    expected="these keys in data_options.images, because images are resized before the model",
    fix="move them to data_options.images",
    path="model_hyperparameters",
)


def mlp(
    dataset: Dataset,
    hidden: Sequence[int] | None = None,
    dropout: float | None = None,
    learning_rate: float | None = None,
) -> keras.Model:
    """Build a multi-layer perceptron for a table.

    The defaults are 64 and 64 units without dropout, and a rate of 0.001. To classify rows of a
    table with missing values or other types, they are 128 and 64 units, 0.4 and 0.002, because
    one-hot vectors make overfitting easy. To classify with fewer than 500 training rows, the rate
    is 0.01 (benchmarks/tables.py).

    Args:
        dataset: The training data.
        hidden: Units of each hidden layer.
        dropout: Share of units to drop after each hidden layer, 0 for none.
        learning_rate: Learning rate of Adam.

    Returns:
        A compiled model from (batch, features) to (batch, classes) logits or (batch, 1) values.

    Raises:
        ConfigurationError: The rows are images, or the label's unit is too small or too large.
    """
    if dataset.picture:
        raise ConfigurationError(_IMAGES_PROBLEM)
    is_mixed = dataset.coding is not None and not dataset.coding.is_identity
    classifies = dataset.task == CLASSIFICATION
    units, share, rate = _MIXED if is_mixed and classifies else _PLAIN
    rate = _RATE_OF_FEW if classifies and dataset.rows["train"] < _FEW_ROWS else rate
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
    filters: Sequence[int] | None = None,
    dense: int = 64,
    dropout: float | None = None,
    learning_rate: float = 1e-3,
) -> keras.Model:
    """Build a small convolutional network for images, or for a table whose columns are pixels.

    Args:
        dataset: The training data.
        height: Of a table: height in pixels; 0 for a square image.
        width: Of a table: width in pixels; 0 for a square image.
        channels: Of a table: values per pixel, side by side.
        filters: Filters of each convolution; a pooling layer after it halves the image. By default
            16 and 32 of a table; of images 16, 32, 64 and so on, up to 128, until they are at
            most 8 pixels high or wide.
        dense: Units of the hidden layer before the output.
        dropout: Share of its units to drop, 0 for none; by default 0 of a table, 0.25 of images.
        learning_rate: Learning rate of Adam.

    Returns:
        A compiled model from (batch, *dataset.input_shape) to (batch, classes) logits or (batch, 1)
        values.

    Raises:
        ConfigurationError: The columns do not form such an image, or are not all numbers, or the
            label's unit is too small or too large.
    """
    inputs = keras.Input(dataset.input_shape)
    if dataset.picture:
        if height or width or channels != 1:
            raise ConfigurationError(_IMAGE_SIZE_PROBLEM)
        x = dataset.encode(inputs)
        filters = _halving(*dataset.input_shape[:2]) if filters is None else filters
        dropout = 0.25 if dropout is None else dropout
    else:
        if dataset.not_numbers:
            raise ConfigurationError(_not_pixels_problem(dataset.not_numbers))
        height, width = _image_size(dataset.num_features, height, width, channels)
        x = dataset.encode(inputs)
        x = keras.layers.Reshape((height, width, channels))(x)
    for number in (16, 32) if filters is None else filters:
        x = keras.layers.Conv2D(int(number), 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D(2, padding="same")(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(int(dense), activation="relu")(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return _compiled(dataset, inputs, x, learning_rate)


def _halving(height: int, width: int) -> list[int]:
    """Return the filters of the convolutions that reduce the shorter side to at most 8 pixels."""
    filters, side = [16], min(height, width) / 2
    while side > 8:
        filters.append(min(128, filters[-1] * 2))
        side /= 2
    return filters if len(filters) > 1 else [16, 32]


def _compiled(
    dataset: Dataset, inputs: keras.KerasTensor, x: keras.KerasTensor, learning_rate: float
) -> keras.Model:
    # The output stays float32 under mixed precision: 16 bits are too coarse for a loss.
    unit = 1.0
    if dataset.task == CLASSIFICATION:
        outputs = keras.layers.Dense(dataset.num_classes, dtype="float32")(x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"]
    else:
        if not _SMALLEST_LABEL_STD <= dataset.label_std <= _LARGEST_LABEL_STD:
            raise ConfigurationError(_label_unit_problem(dataset))
        x = keras.layers.Dense(1, dtype="float32")(x)
        scale = keras.layers.Rescaling(dataset.label_std, dataset.label_mean, dtype="float32")
        outputs, loss, metrics = scale(x), "mean_squared_error", ["mean_absolute_error"]
        # The weight 1 / unit normalizes the labels: for Adam, gradients below 1e-7 are nearly 0.
        unit = dataset.label_std**2
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(learning_rate), loss, [1 / unit], metrics)
    return model


def _label_unit_problem(dataset: Dataset) -> Problem:
    return Problem(
        f"float32 cannot hold the squared errors of the label {dataset.label_name!r}",
        received=f"a standard deviation of {dataset.label_std:.3g}",
        expected=f"a standard deviation from {_SMALLEST_LABEL_STD:g} to {_LARGEST_LABEL_STD:g}",
        fix="multiply the label by a constant in the data, for example to use another unit",
        name="loss-not-finite",
    )


def _not_pixels_problem(columns: Sequence[Column]) -> Problem:
    return Problem(
        "the columns do not form an image, because some are not numbers",
        received=listed([f"{column.name} ({column.kind})" for column in columns], 10),
        expected="a number in every column, each the value of one pixel",
        fix="use kfp_tfjob.trainer.models:mlp, or drop these columns with data_options.drop",
        path="model_code",
        suggestion="kfp_tfjob.trainer.models:mlp",
        name="input-mismatch",
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
                name="input-mismatch",
            )
        )
    return height, width
