"""Tests a step of the model, its loss and the sums over replicas at the start.

Without these tests, training would silently differ from one replica, or fail in its first
evaluation. They run the model as a step does, with rows of the dataset, so what fails in them would
fail in training too. Called by `__main__.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.options.train import TrainerOptions

from .dataset import Dataset
from .export import holder_of
from .inputs import first_rows
from .label_test import is_own_loss, is_weighted, tolerance_of
from .prediction import predict
from .replicas import Replicas, parts_of
from .train_step import INSTALL, TrainSteps, failed_step, leave_sums_to_us
from .user_errors import FAILURES, last_line

log = logging.getLogger(__name__)
_ROWS = 8  # few, because each test runs on every replica at every start
_OTHER_ROWS = 6  # an evaluation has steps of different sizes
_MASKED = Problem(
    "the loss depends on how a batch is divided",
    received="an output with a mask; the loss is then the mean over the unmasked rows, whose number"
    " differs between replicas",
    expected="no mask on the output",
    fix="remove Masking or mask_zero=True, or add a layer that does not pass the mask on; or train"
    " with one replica and without micro_batches",
    name="loss-not-per-row",
)
_UNWEIGHTED = Problem(
    "the loss ignores which rows have which weights",
    received="the same loss, whichever half of some rows has the weight 0",
    expected="one loss for each row, which Keras multiplies by its weight",
    fix="return the loss of each row and let Keras take the mean (tf.reduce_mean with axis=-1); in"
    " your own compute_loss, use sample_weight; or remove data_options.weight and"
    " train_options.class_weight",
    name="loss-not-per-row",
)
_LARGE_WEIGHT = 1e4  # times the other terms of a loss, such as a penalty
_COMPARED = 256  # predicted values of each process: a small message that shows any difference
_TOLERANCE = 1e-3  # relative; real errors are larger by a factor


class _MaskedError(ConfigurationError):
    """The output of the model has a mask."""


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
    weights = [float(part.numpy()) for part in parts_of(weight)]
    if weights != [-0.5] * len(weights):
        raise StepError(
            f"a test step over {replicas.count} replicas changed a weight from 0 to {weights[0]:g}"
            f" instead of -0.5: this version of Keras sums gradients a second time; {INSTALL}"
        )


def check_step(
    model: keras.Model, dataset: Dataset, replicas: Replicas, options: TrainerOptions
) -> None:
    """Run a training step without its update, and an evaluation step; every process must call this.

    Args:
        model: The model, built.
        dataset: The training data.
        replicas: The replicas of the job.
        options: TRAIN_OPTIONS.

    Raises:
        ConfigurationError: The model cannot run them.
    """
    rows = _rows(dataset, is_weighted(dataset, options), _ROWS * options.micro_batches)
    batch = len(rows[0]) * replicas.count
    steps = TrainSteps(model, replicas, batch, options.micro_batches)
    with unchanged(model):
        as_step(model, replicas, steps.rehearse_training)(*rows)
        as_step(model, replicas, steps.rehearse_evaluation)(
            *(column[:_OTHER_ROWS] for column in rows)
        )


def check_model(model: keras.Model, dataset: Dataset, replicas: Replicas) -> None:
    """Compare the predictions of each process's model for some rows; every process must call this.

    Raises:
        ConfigurationError: The model cannot predict, or the processes have built different models.
            Every process raises it.
    """
    if replicas.count == 1:
        return
    x = tf.constant(first_rows(dataset, _ROWS)[0])
    step = as_step(model, replicas, lambda x: predict(model, x))
    with unchanged(model):
        predictions, repeated = (np.asarray(step(x), np.float32) for _ in range(2))
    if not np.allclose(predictions, repeated, rtol=1e-5):
        predictions = np.full(1, np.nan, np.float32)  # it is random, or does not work
    parts = replicas.gather(np.resize(predictions, _COMPARED).tobytes())
    all_predictions = np.array(
        [np.frombuffer(process_bytes, np.float32) for process_bytes in parts]
    )
    tolerance = tolerance_of(_TOLERANCE) * float(np.nanmax(np.abs(all_predictions), initial=1e-6))
    if not np.allclose(all_predictions, all_predictions[0], rtol=0, atol=tolerance, equal_nan=True):
        raise ConfigurationError(
            Problem(
                "the replicas have built different models",
                received="different predictions for the same rows, with equal weights",
                expected="a model function that builds the same model in every process",
                fix="draw random numbers from a generator with a fixed seed, and use no time,"
                " process id or host name",
                name="replicas-differ",
            )
        )


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
    divided, is_user_loss = replicas.count * micro_batches > 1, is_own_loss(model)
    if not divided and not is_user_loss:
        return
    rows = _rows(dataset, is_weighted(dataset, options), _ROWS)
    halves = [tuple(item[offset::2] for item in rows) for offset in (0, 1)]
    part = as_step(model, replicas, lambda *rows: _loss_in_graph(model, *rows))
    weight_problems: list[Problem] = []
    with unchanged(model):
        try:
            parts = [float(part(*half)) for half in halves]
            together, repeated = _loss(model, rows), _loss(model, rows)
            weight_problems = _weight_problems(model, *rows) if is_user_loss else []
        except _MaskedError:
            if divided:
                raise
            return  # one replica may have a mask
        except StepError:
            raise
        except Exception as error:
            # It runs in a step, but not outside of one, as on a single replica.
            log.warning("the loss could not be tested: %s", last_line(error))
            return
    if not (np.isfinite(together) and np.isclose(together, repeated, rtol=1e-5)):
        return  # it is random or not finite: random rows cannot test it
    ConfigurationError.raise_if(weight_problems)
    if not divided:
        return
    mean = sum(parts) * replicas.count / 2
    total = sum(parts) if micro_batches == 1 else mean  # of a loss that is a sum over rows
    tolerance = tolerance_of(_TOLERANCE)
    if not any(np.isclose(loss, together, rtol=tolerance, atol=1e-6) for loss in (mean, total)):
        raise ConfigurationError(
            Problem(
                "the loss depends on how a batch is divided",
                received=f"{together:.6g} for some rows together, and {mean:.6g} as the mean of"
                f" their halves, with {replicas.count} replicas and {micro_batches} micro-batches",
                expected="a mean over independent rows",
                fix='use Keras losses with reduction="sum_over_batch_size"; in your own'
                " compute_loss, divide other terms by"
                " tf.distribute.get_strategy().num_replicas_in_sync; or train with one replica and"
                " without micro_batches",
                name="loss-not-per-row",
            )
        )


def _weight_problems(
    model: keras.Model, x: tf.Tensor, y: tf.Tensor, *weight: tf.Tensor
) -> list[Problem]:
    """Return the problem of a loss that ignores the weights of rows."""
    problems = []
    if weight:
        first, second = _loss(model, (x[::2], y[::2])), _loss(model, (x[1::2], y[1::2]))
        even_rows = tf.constant([1.0, 0.0] * (_ROWS // 2))
        # A term that does not depend on the weights may hide this, unless the weights are so large
        # that it is small in comparison.
        other_terms = abs(_loss(model, (x, y, 0 * even_rows)))
        large_weight = _LARGE_WEIGHT * float(np.fmax(1.0, other_terms))  # 1 if it is not a number
        losses = [
            [
                _loss(model, (x, y, scale * selected_rows))
                for selected_rows in (even_rows, 1 - even_rows)
            ]
            for scale in (1, large_weight)
        ]
        is_same = np.isfinite(losses).all() and all(
            np.isclose(*values, rtol=1e-5) for values in losses
        )
        if is_same and not np.isclose(first, second, rtol=1e-2):
            problems.append(_UNWEIGHTED)
    return problems


@contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Restore the non-trainable variables at the end, because a call may change them."""
    holder = holder_of(model)
    objects = tf.train.TrackableView(holder).descendants()
    variables = (item for item in objects if isinstance(item, keras.Variable | tf.Variable))
    parts = [part for item in variables if not item.trainable for part in parts_of(item)]
    before = [part.numpy() for part in parts]
    try:
        yield
    finally:
        for part, value in zip(parts, before, strict=True):
            part.assign(value)
        model.reset_metrics()


def as_step(
    model: keras.Model, replicas: Replicas, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs as a step does: compiled, on every replica.

    Args:
        model: The model, for messages.
        replicas: The replicas of the job.
        function: Takes and returns tensors.

    Returns:
        A function of the same arguments. It returns the result of the first replica of this
        process, and raises a ConfigurationError if the model fails.
    """
    strategy = replicas.strategy
    plain = tf.autograph.experimental.do_not_convert(function)
    step = tf.function(lambda *rows: strategy.run(plain, args=rows), autograph=False)

    def run(*rows: tf.Tensor) -> Any:
        try:
            # A direct call would warn that each of these functions is traced.
            outputs = step.get_concrete_function(*rows)(*rows)
        except StepError:
            raise
        except FAILURES as error:
            raise ConfigurationError(failed_step(model, error)) from error
        return tf.nest.map_structure(
            lambda output: strategy.experimental_local_results(output)[0], outputs
        )

    return run


def _loss(model: keras.Model, rows: tuple[tf.Tensor, ...]) -> float:
    """Return the loss of rows as a single replica computes it."""
    return float(_loss_in_graph(model, *rows))


def _loss_in_graph(model: keras.Model, x: tf.Tensor, y: tf.Tensor, *weight: tf.Tensor) -> tf.Tensor:
    predicted = predict(model, x)
    if getattr(predicted, "_keras_mask", None) is not None:
        raise _MaskedError(_MASKED)
    weights = weight[0] if weight else None
    return model._compute_loss(x, y, predicted, weights, training=False)


def _rows(dataset: Dataset, weighted: bool, number: int) -> tuple[tf.Tensor, ...]:
    """Return rows, labels and, if `weighted`, weights, three times as large in every second row."""
    x, y, _ = first_rows(dataset, number)
    weight = np.random.default_rng(0).uniform(0.5, 1.5, number).astype(np.float32)
    weight[::2] *= 3
    return tuple(tf.constant(column) for column in (x, y, weight)[: 2 + weighted])
