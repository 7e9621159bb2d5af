"""Encodes packed rows for a network: normalized numbers, one-hot vectors, embeddings.

Called by users' models through the trainer's `dataset.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
import numpy as np

from .coding import Column
from .types import TYPES
from .types.image import HALF

MOST_ONE_HOT = 16  # codes; a column with more gets an embedding
_WIDEST = 32  # units of an embedding, which a column with 1,024 codes reaches


def encode(
    inputs: keras.KerasTensor, columns: Sequence[Column], mean: np.ndarray, std: np.ndarray
) -> keras.KerasTensor:
    """Return (batch, n) float32.

    Columns with equally many codes share a layer, so a wide table does not become a deep graph. A
    column type may bring a layer of its own.

    Args:
        inputs: (batch, width) float32, packed rows.
        columns: The table's columns.
        mean: (width,) means of the packed columns.
        std: (width,) deviations.
    """
    coded = [column for column in columns if column.size]
    numbers = len(mean) - sum(column.width for column in coded)
    with_layers = [column for column in coded if TYPES[column.kind].has_layer]
    coded = [column for column in coded if column not in with_layers]
    parts = []
    if numbers:
        # keras.layers.Normalization is not used, because it takes a deviation below 1e-7 as 0 and
        # one above 1e19 as infinite. Without a layer, this stays float32: 16 bits cannot hold raw
        # values.
        raw = inputs[:, :numbers] if numbers < len(mean) else inputs
        parts.append((raw - mean[:numbers]) * (1 / std[:numbers]))
    sizes = sorted({column.size for column in coded if column.size <= MOST_ONE_HOT})
    for size in sizes:
        starts = [column.start for column in coded if column.size == size]
        parts.append(_one_hot(inputs, starts, size))
    widths: dict[int, list[Column]] = {}
    for column in coded:
        if column.size > MOST_ONE_HOT:
            widths.setdefault(embedding_width(column.size), []).append(column)
    parts += [_embedded(inputs, widths[width], width) for width in sorted(widths)]
    for column in with_layers:
        codes = _codes(inputs, [*range(column.start, column.start + column.width)])
        width = embedding_width(column.size)
        parts.append(TYPES[column.kind].embed(codes, column.size, width))
    return parts[0] if len(parts) == 1 else keras.layers.Concatenate(dtype="float32")(parts)


def centred(inputs: keras.KerasTensor) -> keras.KerasTensor:
    """Return images with values from -1 to 1.

    Args:
        inputs: (batch, height, width, channels) float32, values from 0 to 255.
    """
    return keras.layers.Rescaling(1 / HALF, offset=-1, dtype="float32")(inputs)


def embedding_width(codes: int) -> int:
    """Return the width of a column's embedding: its codes' square root, at most 32."""
    return min(_WIDEST, math.ceil(math.sqrt(codes)))


def _codes(inputs: keras.KerasTensor, places: list[int]) -> keras.KerasTensor:
    # Cast before any layer, because a layer of 16 bits would round them.
    return keras.ops.cast(keras.ops.take(inputs, places, axis=1), "int32")


def _one_hot(inputs: keras.KerasTensor, places: list[int], size: int) -> keras.KerasTensor:
    """Return (batch, columns * (size - 1)); zeros for the code 0, which few training rows have."""
    hot = keras.ops.one_hot(_codes(inputs, places) - 1, size - 1, dtype="float32")
    return keras.ops.reshape(hot, (-1, len(places) * (size - 1)))


def _embedded(inputs: keras.KerasTensor, columns: list[Column], width: int) -> keras.KerasTensor:
    """Return (batch, columns * width): the columns share a table, one after the other."""
    starts = np.cumsum([0, *(column.size for column in columns)])
    places = _codes(inputs, [column.start for column in columns])
    # Not zeros: if there is no other feature, a ReLU behind them would have no gradient. These are
    # so small that a code that no training row has adds next to nothing.
    table = keras.layers.Embedding(int(starts[-1]), width, embeddings_initializer="uniform")
    vectors = table(places + starts[:-1].astype(np.int32))
    return keras.ops.reshape(vectors, (-1, len(columns) * width))
