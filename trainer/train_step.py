"""Runs a step on every replica: sums the gradients over all replicas, then clips and applies them.

Keras clips and checks for infinities before it sums over replicas. That is wrong for clipping, and
a deadlock for loss scaling when only one replica overflows. So this module sums once and disables
the sum of Keras, the only private method of an optimizer that this project relies on. Called by
`loop.py`, and by `self_test.py` before training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import counted

from . import untracked_state
from .prediction import predict
from .replicas import Replicas
from .user_errors import FAILURES, where

log = logging.getLogger(__name__)
_REDUCE = "_all_reduce_sum_gradients"
INSTALL = "install the versions of uv.lock"


class StepsResult(NamedTuple):
    """The result of some steps.

    Attributes:
        done: Number of steps done.
        loss: Loss of the last step, over all replicas.
        data_seconds: Seconds from the requests for batches to their arrival; 0 if all operations
            are deterministic.
    """

    done: int
    loss: float
    data_seconds: float


class TrainSteps:
    """The compiled functions that train and evaluate several steps at once.

    Args:
        model: The model, compiled, and built in the scope of the strategy.
        replicas: The replicas of the job.
        batch: Rows of a training step over all replicas, a multiple of their number.
        micro_batches: Number of parts in which a replica processes its rows, so that only one part
            must fit into memory. A step still has one sum and one update, and the same result as
            with the whole batch.
        jit_compile: Whether XLA compiles the forward and the backward pass. The sum over replicas
            stays outside, because XLA does not support it on CPUs.

    Raises:
        ConfigurationError: A replica's rows are not a multiple of `micro_batches`.
        StepError: The step would be wrong with this version of Keras.
    """

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        batch: int,
        micro_batches: int = 1,
        jit_compile: bool = False,
    ) -> None:
        self.model = model
        self.replicas = replicas
        self.micro_batches = micro_batches
        _check_micro_batches(micro_batches, batch, replicas.count)
        self._sums_asked_for = leave_sums_to_us(model.optimizer)
        self._traced = False
        # TensorFlow rejects a clock if all operations are deterministic. Besides the option
        # deterministic_ops, the user's code may have requested that.
        is_exact = is_op_determinism_enabled()
        self._now = (lambda: tf.constant(0.0, tf.float64)) if is_exact else tf.timestamp
        # No autograph: converting Python to a graph takes much of the time of a restart.
        self._train = tf.function(self._train_in_graph, autograph=False)
        self._evaluate = tf.function(self._evaluate_in_graph, autograph=False)
        self._results = tf.function(lambda: model.get_metrics_result(), autograph=False)
        if jit_compile:
            self._forward_and_backward = tf.function(
                self._forward_and_backward, autograph=False, jit_compile=True
            )

    def train(self, iterator: Iterator[Any], steps: int) -> StepsResult:
        """Train some steps; stop after a step with a loss that is not finite."""
        step_count = tf.constant(steps)
        if not self._traced:
            try:
                step = self._train.get_concrete_function(iterator, step_count)
            except StepError:
                raise
            except FAILURES as error:
                raise ConfigurationError(failed_step(self.model, error)) from error
            trained = self.model.trainable_variables
            if self.replicas.count > 1 and trained and not self._sums_asked_for:
                raise StepError(f"the optimizer does not use {_REDUCE}; {INSTALL}")
            if self.replicas.chief:
                for warning in untracked_state.warnings(step, self.model):
                    log.warning("%s", warning)
            self._traced = True
        done, loss, data_seconds = self._train(iterator, step_count)
        return StepsResult(int(done), float(loss), float(data_seconds))

    def evaluate(self, iterator: Iterator[Any], steps: int) -> None:
        """Update the metrics with some steps of the evaluation split."""
        self._evaluate(iterator, tf.constant(steps))

    def results(self) -> dict[str, float]:
        """Return the metrics over all replicas, the loss first.

        Raises:
            ConfigurationError: A metric is not a number, or there is no loss.
        """
        metrics = dict(_flat(self._results()))
        ConfigurationError.raise_if(
            Problem(
                f"the model's metric {name} is not a single number",
                received=f"shape {tuple(value.shape)}",
                expected="shape ()",
                fix="make its result() return a mean, or a dict of numbers",
            )
            for name, value in metrics.items()
            if np.size(value) != 1
        )
        if "loss" not in metrics:
            raise ConfigurationError(
                Problem(
                    "the model's metrics do not include a loss",
                    received=", ".join(metrics) or "none",
                    expected="a metric with the name 'loss'",
                    fix="remove the model's property `metrics`, or name one of its metrics 'loss'",
                )
            )
        numbers = {name: float(np.reshape(value, ())) for name, value in metrics.items()}
        return {"loss": numbers.pop("loss")} | numbers

    def rehearse_training(self, x: Any, y: Any, weight: Any = None) -> list[Any]:
        """Compute a training step of this replica without the update.

        Returns:
            The loss, the predictions and the gradients, because TensorFlow does not compute tensors
            that are not returned.
        """
        loss, predicted, gradients = self._gradients(x, y, weight)
        self._update_metrics(x, y, predicted, weight, loss)
        return [loss, predicted, *(gradient for gradient in gradients if gradient is not None)]

    def rehearse_evaluation(self, x: Any, y: Any, weight: Any = None) -> Any:
        """Compute an evaluation step of this replica; return the predictions."""
        return self._evaluate_rows(x, y, weight)

    def finish(self) -> None:
        """Give the model its final weights: averages, if the optimizer keeps them."""
        with self.replicas.strategy.scope():
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def _train_in_graph(self, iterator: Any, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        strategy = self.replicas.strategy

        def continues(done: tf.Tensor, loss: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
            return (done < steps) & tf.math.is_finite(loss)

        def step(done: tf.Tensor, _: tf.Tensor, data_seconds: tf.Tensor) -> tuple[tf.Tensor, ...]:
            request_time = self._now()
            with tf.control_dependencies([request_time]):
                batch = next(iterator)
            batch, arrival_time = _wait_and_read_clock(batch, self._now)
            data_seconds += arrival_time - request_time
            total = strategy.run(self._train_replica, args=(batch,))
            return done + 1, strategy.experimental_local_results(total)[0], data_seconds

        start = (tf.constant(0), tf.constant(0.0), tf.constant(0.0, tf.float64))
        return tf.while_loop(continues, step, start, parallel_iterations=1)

    def _evaluate_in_graph(self, iterator: Any, steps: tf.Tensor) -> None:
        def step(done: tf.Tensor) -> tuple[tf.Tensor]:
            self.replicas.strategy.run(self._evaluate_replica, args=(next(iterator),))
            return (done + 1,)

        tf.while_loop(lambda done: done < steps, step, (tf.constant(0),), parallel_iterations=1)

    @tf.autograph.experimental.do_not_convert
    def _train_replica(self, batch: Any) -> tf.Tensor:
        x, y, weight = _unpack(batch)
        loss, predicted, gradients = self._gradients(x, y, weight)
        gradients, total = self._sum(gradients, loss)
        variables = self.model.trainable_variables
        if variables:  # as in model.fit, which only evaluates a fully frozen model
            self.model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_metrics(x, y, predicted, weight, loss)
        return total

    @tf.autograph.experimental.do_not_convert
    def _evaluate_replica(self, batch: Any) -> None:
        self._evaluate_rows(*_unpack(batch))

    def _evaluate_rows(self, x: Any, y: Any, weight: Any) -> Any:
        predicted = predict(self.model, x)
        loss = self._loss(x, y, predicted, weight, training=False)
        self._update_metrics(x, y, predicted, weight, loss)
        return predicted

    def _gradients(self, x: Any, y: Any, weight: Any) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        """Return the loss of this replica's rows, the predictions and the gradients."""
        if self.micro_batches == 1:
            return self._forward_and_backward(x, y, weight)
        tensors = [item for item in (x, y, weight) if item is not None]
        losses, predictions, gradients = [], [], []
        for part in zip(*(tf.split(item, self.micro_batches) for item in tensors), strict=True):
            with tf.control_dependencies([item for item in gradients if item is not None]):
                part = [tf.identity(item) for item in part]
            loss, predicted, part_gradients = self._forward_and_backward(
                *part, *[None] * (3 - len(part))
            )
            losses.append(loss)
            predictions.append(predicted)
            gradients = (
                [_add(*pair) for pair in zip(gradients, part_gradients, strict=True)]
                if gradients
                else part_gradients
            )
        return tf.add_n(losses), tf.concat(predictions, 0), gradients

    def _forward_and_backward(
        self, x: Any, y: Any, weight: Any
    ) -> tuple[tf.Tensor, tf.Tensor, list[Any]]:
        optimizer, variables = self.model.optimizer, self.model.trainable_variables
        with tf.GradientTape() as tape:
            predicted = predict(self.model, x, training=True)
            loss = self._loss(x, y, predicted, weight, training=True) / self.micro_batches
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if variables and all(gradient is None for gradient in gradients):
            raise ConfigurationError(
                Problem(
                    "the loss has no gradient",
                    received=f"none for any of {counted(len(variables), 'weight')} of the model",
                    expected="a loss that changes with the model's outputs",
                    fix="compute it from outputs that are not rounded, compared or cast to whole"
                    " numbers, because tf.round and tf.argmax, for example, have no gradient",
                    name="loss-without-gradient",
                )
            )
        # Dense for one replica too: a norm over repeated rows would differ.
        dense = [
            None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients
        ]
        return tf.cast(loss, tf.float32), predicted, dense

    def _loss(self, x: Any, y: Any, predicted: Any, weight: Any, training: bool) -> tf.Tensor:
        # Keras divides by the number of replicas here, so the sum over them is the mean.
        return self.model._compute_loss(
            x=x, y=y, y_pred=predicted, sample_weight=weight, training=training
        )

    def _sum(self, gradients: list[Any], loss: tf.Tensor) -> tuple[list[Any], tf.Tensor]:
        """Return the gradients and the loss over all replicas."""
        if self.replicas.count == 1:
            return gradients, loss
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        summands = [*(gradients[index] for index in present), loss]
        context = tf.distribute.get_replica_context()
        summed = list(summands)
        for dtype in dict.fromkeys(summand.dtype for summand in summands):  # a message has one type
            places = [index for index, summand in enumerate(summands) if summand.dtype == dtype]
            sums = context.all_reduce(
                tf.distribute.ReduceOp.SUM, [summands[index] for index in places]
            )
            for index, summand in zip(places, sums, strict=True):
                summed[index] = summand
        *summed, total = summed
        result = list(gradients)
        for index, gradient in zip(present, summed, strict=True):
            result[index] = gradient
        return result, total

    def _update_metrics(self, x: Any, y: Any, predicted: Any, weight: Any, loss: Any) -> None:
        rows = tf.shape(x)[0]
        self.model._loss_tracker.update_state(loss * self.replicas.count, sample_weight=rows)
        self.model.compute_metrics(x, y, predicted, weight)


def failed_step(model: keras.Model, error: BaseException) -> Problem:
    """Return the problem of a model that cannot run a step."""
    sizes = [tensor.shape[0] for tensor in getattr(model, "inputs", None) or () if tensor.shape[0]]
    fix = "correct the layer, loss or metric in this error"
    if sizes:
        fix = f"remove batch_size={sizes[0]} from keras.Input, or {fix}"
    return Problem(
        "the model cannot run a step",
        received=where(error),
        expected="a model that trains on and evaluates any number of rows",
        fix=fix,
        name="model-step-failed",
    )


def jit_compile_here(requested: bool) -> bool:
    """Return whether XLA compiles on this machine: if `requested`, and there are GPUs."""
    if requested and not tf.config.list_logical_devices("GPU"):
        log.warning("jit_compile is ignored: without a GPU it makes a step several times slower")
        return False
    return requested


def leave_sums_to_us(optimizer: Any) -> list[str]:
    """Make an optimizer use gradients without summing them.

    Returns:
        The names of the optimizers that called the replaced sum since then; the list grows.

    Raises:
        StepError: This version of Keras sums somewhere else.
    """
    callers: list[str] = []

    def return_unchanged(gradients: Any) -> list[Any]:
        callers.append(optimizer.name)
        return list(gradients)

    for inner in innermost(optimizer):
        if not hasattr(inner, _REDUCE):
            raise StepError(f"this version of Keras has no {_REDUCE}; {INSTALL}")
        # Keras tracks the attributes of an optimizer; this one is not state.
        object.__setattr__(inner, _REDUCE, return_unchanged)
    return callers


def innermost(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizers that update variables, inside loss scaling and MultiOptimizer."""
    inner_optimizers: Sequence[Any] = getattr(optimizer, "optimizers", ())
    if hasattr(optimizer, "inner_optimizer"):
        inner_optimizers = [optimizer.inner_optimizer]
    for inner in inner_optimizers:
        yield from innermost(inner)
    if not inner_optimizers:
        yield optimizer


def _check_micro_batches(micro_batches: int, batch: int, replicas: int) -> None:
    rows = batch // replicas
    if rows % micro_batches:
        raise ConfigurationError(
            Problem(
                "the rows of a replica cannot be divided evenly into micro-batches",
                received=f"train_options.micro_batches {micro_batches} for {rows} rows: a batch of"
                f" {batch} over {replicas} replicas",
                expected=f"a divisor of {rows}",
                fix="change micro_batches or train_batch_size",
                name="batch-size",
            )
        )


def _flat(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics; a dict of named numbers yields each number, as in Keras."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _add(first: Any, second: Any) -> Any:
    """Return the sum of two gradients; None if the loss does not depend on their weight."""
    return None if first is None else first + second


def _wait_and_read_clock(tensors: Any, clock: Callable[[], tf.Tensor]) -> tuple[Any, tf.Tensor]:
    """Return these tensors, and the time in seconds, () float64, when all of them were ready.

    Operations that use the tensors wait until the clock is read. Otherwise one core would read it
    much later.
    """
    parts = tf.nest.flatten(tensors, expand_composites=True)
    with tf.control_dependencies(parts):
        now = clock()
    with tf.control_dependencies([now]):
        parts = [tf.identity(part) for part in parts]
    return tf.nest.pack_sequence_as(tensors, parts, expand_composites=True), now


def _unpack(batch: Any) -> tuple[Any, Any, Any]:
    x, y, weight = batch
    return x, y, None if isinstance(weight, tuple) else weight
