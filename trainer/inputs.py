"""Batches for the replicas of this process, from the records of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from storage.errors import DataError, Problem
from trainer.dataset import CLASSIFICATION, Dataset
from trainer.records import Records

# Part of the message of the check inside the graph, by which its error is told from others.
WRONG_LABEL = "a label is not one of the classes"
_SCAN_ROWS = 8192


def open_split(dataset: Dataset, split: str) -> Records:
    """Return the records of a split.

    Raises:
        DataError: There are not as many as schema.json says.
    """
    shards = dataset.shards(split)
    if missing := [path.name for path in shards if not path.exists()]:
        raise DataError(
            Problem(
                f"the split {split} is not complete",
                received=f"a manifest without {', '.join(missing)}",
                expected="every shard that schema.json names",
                fix="prepare the dataset again",
            )
        )
    records = Records(shards)
    expected = dataset.rows.get(split, 0)
    if len(records) != expected:
        raise DataError(
            Problem(
                f"the split {split} is not complete",
                received=f"{len(records)} rows",
                expected=f"{expected} rows (schema.json)",
                fix="prepare the dataset again",
            )
        )
    return records


def distribute(
    strategy: tf.distribute.Strategy,
    dataset: Dataset,
    records: Records,
    slices: Callable[[], Iterable[np.ndarray]],
    size: int | None,
    weights: np.ndarray | None = None,
) -> Iterator[Any]:
    """Return an endless iterator over the batches of the replicas of this process.

    Args:
        strategy: Of the job.
        dataset: For the names and types of the columns.
        records: Of the split.
        slices: Returns, replica by replica and step by step, the rows to take.
        size: Rows of every slice; None when they differ.
        weights: (classes,) weight of a row by its class; None for no weights.

    Returns:
        Elements for `strategy.run`: (features (rows, n) float32, labels (rows,), weights (rows,) or
        an empty tuple).
    """
    parse = _parser(dataset, weights)

    def generate() -> Iterator[np.ndarray]:
        for rows in slices():
            yield np.array(records.take(rows), object)

    def pipeline(_context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([size], tf.string)
        )
        # Parsing whole batches is ten times as fast as parsing records. An endless dataset spares
        # the replicas asking each other at every step whether there is more.
        return batches.map(parse).repeat().prefetch(2)

    return iter(strategy.distribute_datasets_from_function(pipeline))


def read_labels(dataset: Dataset, records: Records) -> np.ndarray:
    """Return (rows,) the labels of all records.

    Raises:
        DataError: One is not a class.
    """
    spec = {"label": tf.io.FixedLenFeature([], _label_type(dataset))}
    found = [
        tf.io.parse_example(records.take(np.arange(at, min(at + _SCAN_ROWS, len(records)))), spec)
        for at in range(0, len(records), _SCAN_ROWS)
    ]
    labels = np.concatenate([batch["label"].numpy() for batch in found])
    if dataset.task == CLASSIFICATION:
        wrong = labels[(labels < 0) | (labels >= dataset.num_classes)]
        if len(wrong):
            raise DataError(
                Problem(
                    "a label of the dataset is not one of its classes",
                    received=f"{len(wrong)} such labels, the first is {wrong[0]}",
                    expected=f"whole numbers from 0 to {dataset.num_classes - 1}",
                    fix="prepare the dataset again",
                )
            )
    return labels


def _label_type(dataset: Dataset) -> tf.DType:
    return tf.int64 if dataset.task == CLASSIFICATION else tf.float32


def _parser(dataset: Dataset, weights: np.ndarray | None) -> Callable[[tf.Tensor], Any]:
    spec = {
        "features": tf.io.FixedLenFeature([dataset.num_features], tf.float32),
        "label": tf.io.FixedLenFeature([], _label_type(dataset)),
    }
    table = None if weights is None else tf.constant(weights)

    @tf.autograph.experimental.do_not_convert
    def parse(batch: tf.Tensor) -> Any:
        columns = tf.io.parse_example(batch, spec)
        label = columns["label"]
        if dataset.task == CLASSIFICATION:
            fits = tf.reduce_all((label >= 0) & (label < dataset.num_classes))
            with tf.control_dependencies([tf.debugging.Assert(fits, [WRONG_LABEL, label])]):
                label = tf.identity(label)
        weight = () if table is None else tf.gather(table, label)
        return columns["features"], label, weight

    return parse
