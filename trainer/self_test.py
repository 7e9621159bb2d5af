"""Tests the loss, the sums over replicas and the export at the start.

Without these tests, training would silently learn something else, differ from one replica, or fail
at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model.save import export_meta_graph  # a SavedModel without its weights

from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset
from kfp_tfjob.trainer.export import with_signatures
from kfp_tfjob.trainer.replicas import Replicas, parts_of
from kfp_tfjob.trainer.train_step import INSTALL, leave_sums_to_us
from kfp_tfjob.trainer.user_model import where

log = logging.getLogger(__name__)
_ROWS = 4  # of each half of the example
_MASKED = Problem(
    "the loss depends on how a batch is divided",
    received="an output with a mask: the loss is the mean over the unmasked rows, and their number"
    " differs between replicas",
    expected="no mask on the output",
    fix="remove Masking, or add a layer that does not pass the mask on; or train with one replica"
    " and without micro_batches",
)
_PAIRS = Problem(
    "the loss compares every label with every row",
    received="the same loss with the labels in another order",
    expected="a loss from each row and its own label: the labels have the shape (rows,), and an"
    " output may have (rows, 1)",
    fix="give both the same shape in the loss: y_true = tf.reshape(y_true, tf.shape(y_pred))",
)
_UNWEIGHTED = Problem(
    "the loss ignores which rows have which weights",
    received="the same loss, whichever half of some rows has the weight 0",
    expected="one loss for each row, which Keras multiplies by its weight",
    fix="return the loss of each row and let Keras take the mean (tf.reduce_mean with axis=-1); in"
    " your own compute_loss, use sample_weight; or remove data_options.weight and"
    " TRAIN_OPTIONS.class_weight",
)
_COMPARED = 256  # predicted values of each process
_TOLERANCE, _TOLERANCE_16_BITS = 1e-3, 0.05  # relative; real errors are larger by a factor


def check_sum(replicas: Replicas) -> None:
    """Take a step with a known result: gradients of 1, summed, clipped to 0.5, applied once.

    Raises:
        StepError: The weight differs, so this version of Keras sums somewhere else.
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
            f"a test step over {replicas.count} replicas changed a weight from 0 to {found[0]:g}"
            f" instead of -0.5: this version of Keras sums gradients a second time; {INSTALL}"
        )


def check_model(model: keras.Model, dataset: Dataset, replicas: Replicas) -> None:
    """Compare what each process's model makes of some rows; every process must call this.

    Raises:
        ConfigurationError: The processes have built different models. Every process raises it.
    """
    if replicas.count == 1:
        return
    rows = dataset.example(_ROWS)
    try:
        with _unchanged(model):
            mine, again = (np.asarray(_predict(model, rows), np.float32) for _ in range(2))
    except Exception as error:
        log.warning("the model could not be tested: %s: %.300s", type(error).__name__, error)
        mine = again = np.full(1, np.nan, np.float32)
    if not np.allclose(mine, again, rtol=1e-5):
        mine = np.full(1, np.nan, np.float32)  # it is random, or does not work
    parts = replicas.gather(np.resize(mine, _COMPARED).tobytes())
    everyone = np.array([np.frombuffer(it, np.float32) for it in parts])
    is_short = keras.mixed_precision.dtype_policy().compute_dtype != "float32"
    tolerance = _TOLERANCE_16_BITS if is_short else _TOLERANCE
    room = tolerance * float(np.nanmax(np.abs(everyone), initial=1e-6))
    if not np.allclose(everyone, everyone[0], rtol=0, atol=room, equal_nan=True):
        raise ConfigurationError(
            Problem(
                "the replicas have built different models",
                received="different predictions for the same rows, with equal weights",
                expected="a model function that builds the same model in every process",
                fix="draw random numbers from a generator with a fixed seed, and use no time,"
                " process id or host name",
            )
        )


def check_export(model: keras.Model, dataset: Dataset) -> None:
    """Write the graph of the SavedModel, as after the training.

    Raises:
        ConfigurationError: The model cannot be exported.
    """
    try:
        with TemporaryDirectory() as folder:  # tracing a model does not change its variables
            holder, signatures = with_signatures(model, dataset)
            export_meta_graph(holder, f"{folder}/graph", signatures)
    except Exception as error:
        raise ConfigurationError(
            Problem(
                "the model cannot be exported",
                received=where(error),
                expected="a model that TensorFlow can write as a SavedModel",
                fix="create lookup tables and tf.Variables in the layer or model that uses them,"
                " as its attributes: self.table = tf.lookup.StaticHashTable(...)",
            )
        ) from error


def check_loss(
    model: keras.Model, dataset: Dataset, replicas: Replicas, options: TrainerOptions
) -> None:
    """Test the loss with a few random rows.

    A user's own loss must use the label and the weight of each row. A loss that is not a mean over
    rows, or a compute_loss that ignores the number of replicas, has a different value with several
    replicas than with one.

    Args:
        model: The model, built.
        dataset: The training data.
        replicas: The replicas of the job.
        options: TRAIN_OPTIONS, for the weights of rows and the micro-batches of a step.

    Raises:
        ConfigurationError: The loss is wrong, or differs.
    """
    micro_batches = options.micro_batches
    divided, own = replicas.count * micro_batches > 1, _is_own_loss(model)
    if not divided and not own:
        return
    weighted = options.class_weight is not None or dataset.row_weights is not None
    rows = _example(dataset, weighted)
    halves = [tuple(item[at::2] for item in rows) for at in (0, 1)]
    try:
        with _unchanged(model):
            whole, again = _loss(model, rows), _loss(model, rows)
            wrong = _wrong_rows(model, *rows) if own else []
            with replicas.strategy.scope():
                parts = [_loss(model, half) for half in halves]
    except ConfigurationError:
        if divided:
            raise
        return  # one replica may have a mask
    except Exception as error:
        log.warning("the loss could not be tested: %s: %.300s", type(error).__name__, error)
        return
    finally:
        model.reset_metrics()
    if not (np.isfinite(whole) and np.isclose(whole, again, rtol=1e-5)):
        return  # it is random or not finite: random rows cannot test it
    ConfigurationError.raise_if(wrong)
    if not divided:
        return
    mean = sum(parts) * replicas.count / 2
    total = sum(parts) if micro_batches == 1 else mean  # of a loss that is a sum over rows
    sixteen = keras.mixed_precision.dtype_policy().compute_dtype != "float32"
    tolerance = _TOLERANCE_16_BITS if sixteen else _TOLERANCE
    if not any(np.isclose(found, whole, rtol=tolerance, atol=1e-6) for found in (mean, total)):
        raise ConfigurationError(
            Problem(
                "the loss depends on how a batch is divided",
                received=f"{whole:.6g} for some rows together, and {mean:.6g} as the mean of their"
                f" halves, with {replicas.count} replicas and {micro_batches} micro-batches",
                expected="a mean over independent rows",
                fix='use Keras losses with reduction="sum_over_batch_size"; in your own'
                " compute_loss, divide other terms by"
                " tf.distribute.get_strategy().num_replicas_in_sync; or train with one replica and"
                " without micro_batches",
            )
        )


def _wrong_rows(
    model: keras.Model, x: tf.Tensor, y: tf.Tensor, *weight: tf.Tensor
) -> list[Problem]:
    """Return what is wrong with how the loss uses the labels and weights of rows.

    A model may begin with equal predictions, or its loss may need no labels. So equal losses are
    no proof alone.
    """
    problems = []
    plain = _loss(model, (x, y))
    if np.isclose(plain, _loss(model, (x, tf.roll(y, 1, 0))), rtol=1e-5):
        problems += [] if np.isclose(plain, _loss(model, (x, y[:, None]))) else [_PAIRS]
    if weight:
        first, second = _loss(model, (x[::2], y[::2])), _loss(model, (x[1::2], y[1::2]))
        ones = tf.constant([1.0, 0.0] * _ROWS)
        found = [_loss(model, (x, y, item)) for item in (ones, 1 - ones)]
        if np.isclose(*found, rtol=1e-5) and not np.isclose(first, second, rtol=1e-2):
            problems.append(_UNWEIGHTED)
    return problems


def _is_own_loss(model: keras.Model) -> bool:
    """Return whether a loss is user code; the losses of Keras are known to fit."""
    losses = filter(None, map(keras.losses.get, tf.nest.flatten(model.loss)))
    code = [type(model).compute_loss, *(getattr(item, "fn", item) for item in losses)]
    return not all(str(item.__module__).startswith("keras.") for item in code)


def _assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        for part in parts_of(variable):
            part.assign(value.astype(part.dtype.as_numpy_dtype))


@contextmanager
def _unchanged(model: keras.Model) -> Iterator[None]:
    """Restore the non-trainable variables at the end, because a call may change them."""
    state = [item for item in model.variables if not item.trainable]
    before = [item.numpy() for item in state]
    try:
        yield
    finally:
        _assign(state, before)


def _predict(model: keras.Model, x: tf.Tensor) -> tf.Tensor:
    return model(x, training=False) if model._call_has_training_arg else model(x)


def _loss(model: keras.Model, rows: tuple[tf.Tensor, ...]) -> float:
    x, y, *weight = rows
    predicted = _predict(model, x)
    if getattr(predicted, "_keras_mask", None) is not None:
        raise ConfigurationError(_MASKED)
    weights = weight[0] if weight else None
    return float(model._compute_loss(x, y, predicted, weights, training=False))


def _example(dataset: Dataset, weighted: bool) -> tuple[tf.Tensor, ...]:
    """Return random rows, their labels, and different weights if wanted."""
    random, rows = np.random.default_rng(0), 2 * _ROWS
    x: Any = dataset.example(rows)
    if dataset.task == CLASSIFICATION:
        y: Any = random.integers(0, dataset.num_classes, rows)
    else:
        y = dataset.label_mean + dataset.label_std * random.normal(size=rows)
        y = y.astype(np.float32)
    weight = random.uniform(0.5, 1.5, rows).astype(np.float32)
    return tuple(tf.constant(item) for item in (x, y, weight)[: 2 + weighted])
