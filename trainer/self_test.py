"""What is tried out at start: that sums over replicas are right with this Keras and this model."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from storage.errors import ConfigurationError, Problem, StepError
from trainer.config import Options
from trainer.dataset import CLASSIFICATION, Dataset
from trainer.replicas import Replicas, parts_of
from trainer.step import INSTALL, leave_sums_to_us

log = logging.getLogger(__name__)
_ROWS = 4  # of each half of the example
_TOLERANCE, _TOLERANCE_16_BITS = 1e-3, 0.05  # relative; what is wrong is wrong by a factor


def check_sum(replicas: Replicas) -> None:
    """Take a step whose result is known: gradients of 1, summed, clipped to 0.5, applied once.

    Raises:
        StepError: The weight is another one, so this version of Keras sums somewhere else.
    """
    if replicas.count == 1:
        return
    with replicas.strategy.scope():
        weight = keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=0.5)
        optimizer.build([weight])
    leave_sums_to_us(optimizer)

    def step() -> None:
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))
        optimizer.apply_gradients([(gradient, weight)])

    tf.function(lambda: replicas.strategy.run(step), autograph=False)()
    found = [float(part.numpy()) for part in parts_of(weight)]
    if found != [-0.5] * len(found):
        raise StepError(
            f"a step over {replicas.count} replicas that takes a weight from 0 to -0.5 took it to"
            f" {found[0]:g}: this version of Keras sums gradients a second time; {INSTALL}"
        )


def check_loss(model: keras.Model, dataset: Dataset, replicas: Replicas, options: Options) -> None:
    """Compare the loss of a few random rows with what comes of their halves, taken apart.

    A loss that is no mean over rows, or a compute_loss that leaves the number of replicas out, is
    another one with several replicas than with one.

    Args:
        model: Built.
        dataset: What it is trained on.
        replicas: Of the job.
        options: Whether rows have weights, and the micro-batches of a step.

    Raises:
        ConfigurationError: They differ.
    """
    micro_batches = options.micro_batches
    if replicas.count * micro_batches == 1:
        return
    rows = _example(dataset, weighted=options.class_weight is not None)
    halves = [tuple(item[at::2] for item in rows) for at in (0, 1)]
    try:
        whole, again = _loss(model, rows), _loss(model, rows)
        with replicas.strategy.scope():
            parts = [_loss(model, half) for half in halves]
    except Exception as error:
        log.warning("the loss could not be tried out: %s: %.300s", type(error).__name__, error)
        return
    finally:
        model.reset_metrics()
    if not (np.isfinite(whole) and np.isclose(whole, again, rtol=1e-5)):
        return  # it is random, or not finite: random rows say nothing about this loss
    mean = sum(parts) * replicas.count / 2
    total = sum(parts) if micro_batches == 1 else mean  # of a loss that is a sum over rows
    sixteen = keras.mixed_precision.dtype_policy().compute_dtype != "float32"
    tolerance = _TOLERANCE_16_BITS if sixteen else _TOLERANCE
    if not any(np.isclose(found, whole, rtol=tolerance, atol=1e-6) for found in (mean, total)):
        raise ConfigurationError(
            Problem(
                "the loss depends on how a batch is divided",
                received=f"{whole:.6g} for some rows at once, and {mean:.6g} as the mean of their"
                f" halves, with {replicas.count} replicas and {micro_batches} micro-batches",
                expected="a mean over rows that need nothing of each other",
                fix='use losses of Keras with reduction="sum_over_batch_size"; in an own'
                " compute_loss, divide what is no loss of Keras by"
                " tf.distribute.get_strategy().num_replicas_in_sync; or train with one replica and"
                " without micro_batches",
            )
        )


def _loss(model: keras.Model, rows: tuple[tf.Tensor, ...]) -> float:
    x, y, *weight = rows
    predicted = model(x, training=False) if model._call_has_training_arg else model(x)
    weights = weight[0] if weight else None
    return float(model._compute_loss(x, y, predicted, weights, training=False))


def _example(dataset: Dataset, weighted: bool) -> tuple[tf.Tensor, ...]:
    """Return random rows, their labels, and weights that differ where there are some."""
    random, rows = np.random.default_rng(0), 2 * _ROWS
    noise = random.normal(size=(rows, dataset.num_features))
    x: Any = (dataset.mean + dataset.std * noise).astype(np.float32)
    if dataset.task == CLASSIFICATION:
        y: Any = random.integers(0, dataset.num_classes, rows)
    else:
        y = dataset.label_mean + dataset.label_std * random.normal(size=rows)
        y = y.astype(np.float32)
    weight = random.uniform(0.5, 1.5, rows).astype(np.float32)
    return tuple(tf.constant(item) for item in (x, y, weight)[: 2 + weighted])
