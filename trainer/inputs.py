"""Builds the batches for the replicas of this process from a split's rows.

The order of an epoch follows from the seed and the epoch's number alone, so a restored training
continues with the rows that would have come next. Called by `loop.py` for training, and by the
tests of a model before it, such as `self_test.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kfp_tfjob.features.records import train_batch_size

from .dataset import Dataset
from .image_rows import ImageRows
from .rows import Rows

# Options of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Bytes: glibc accepts no larger threshold; this much freed memory is kept for the next batches.
_LARGEST_MMAP_THRESHOLD, _SPARE_MEMORY = 32 << 20, 256 << 20


def open_rows(dataset: Dataset, split: str) -> Rows | ImageRows:
    """Return a split's rows."""
    return ImageRows(dataset, split) if dataset.picture else Rows(dataset, split)


def first_rows(
    dataset: Dataset, number: int, split: str = "train"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first rows of a split as a step gets them, for tests of a model.

    Args:
        dataset: The dataset.
        number: How many; if the split has fewer, they are repeated.
        split: The split.

    Returns:
        (rows, *input_shape) float32 features, (rows,) labels, (rows,) float32 weights.

    Raises:
        DataError: There are no rows.
    """
    rows = open_rows(dataset, split)
    train_batch_size(len(rows), 1, 1)  # rejects an empty split
    x, y, weights = rows.take_weighted(np.resize(np.arange(len(rows)), number))
    if dataset.picture:
        x = dataset.picture.decode(tf.constant(x)).numpy()
    row_weights = dataset.row_weights
    if row_weights is None or weights is None:
        return x, y, np.ones(number, np.float32)
    return x, y, row_weights.scaled(split, weights)


def distribute(
    strategy: tf.distribute.Strategy,
    dataset: Dataset,
    rows: Rows | ImageRows,
    slices: Callable[[], Iterable[np.ndarray]],
    size: int | None,
    weights: np.ndarray | None = None,
    split: str = "train",
) -> Iterator[Any]:
    """Return an endless iterator over the batches of this process's replicas.

    Args:
        strategy: The strategy of the job.
        dataset: The dataset, for the columns and the labels.
        rows: The split's rows.
        slices: Returns the rows to take, step by step and replica by replica.
        size: Rows of every slice; None if they differ.
        weights: (classes,) weight of a row by its class; None for no weights.
        split: The split, for the mean of its row weights, which multiply the class weights.

    Returns:
        Elements for `strategy.run`: (features (rows, *input_shape) float32, labels (rows,), weights
        (rows,) or an empty tuple).
    """
    picture, row_weights = dataset.picture, dataset.row_weights
    is_weighted = weights is not None or row_weights is not None
    sizes = ([size] if picture else [size, dataset.num_features], [size], [size])
    first = tf.string if picture else np.float32
    types = (first, rows.label_type, np.float32)[: 3 if is_weighted else 2]

    def endless() -> Iterator[np.ndarray]:
        while True:
            yield from slices()

    order = endless()

    def take(_: Any) -> tuple[np.ndarray, ...]:
        features, labels, own_weights = rows.take_weighted(next(order))
        if row_weights is None or own_weights is None:
            return (features, labels) if weights is None else (features, labels, weights[labels])
        own_weights = row_weights.scaled(split, own_weights)
        return features, labels, own_weights if weights is None else own_weights * weights[labels]

    @tf.autograph.experimental.do_not_convert
    def batch(_: tf.Tensor) -> Any:
        arrays = tf.numpy_function(take, [_], types)
        shaped = [
            tf.ensure_shape(array, shape) for array, shape in zip(arrays, sizes, strict=False)
        ]
        return shaped[0], shaped[1], shaped[2] if is_weighted else ()

    @tf.autograph.experimental.do_not_convert
    def decoded(encoded: tf.Tensor, *labels_and_weights: Any) -> Any:
        assert picture
        return picture.decode(encoded), *labels_and_weights

    def pipeline(_context: tf.distribute.InputContext) -> tf.data.Dataset:
        # It is endless, so the replicas do not ask each other at every step if there is more.
        # Per element, it takes half the time of Dataset.from_generator.
        batches = tf.data.Dataset.from_tensors(0).repeat().map(batch)
        if picture:
            batches = batches.map(decoded, tf.data.AUTOTUNE, deterministic=True)
        return batches.prefetch(2)

    batches = iter(strategy.distribute_datasets_from_function(pipeline))
    _keep_freed_memory()
    return batches


def _keep_freed_memory() -> None:
    """Keep freed memory instead of returning it to the kernel.

    Batches and the messages of a sum over replicas are large, so the C library maps them again
    every time. This costs hundreds of page faults per step, and more time than sending the data.
    TensorFlow changes these settings when it creates an iterator, so call this afterwards.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not the GNU C library
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, _SPARE_MEMORY)
