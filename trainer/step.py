"""One step on every replica: gradients summed over all of them, then clipped, then applied.

Keras clips and checks for infinities before it sums over replicas, which is wrong for clipping and
a deadlock for loss scaling when only one replica overflows. So the sum is taken here, once, and
Keras' own is switched off; that is the one private method of an optimizer this project relies on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from storage.errors import StepError
from trainer.replicas import Replicas, parts_of

_REDUCE = "_all_reduce_sum_gradients"
_STREAMS = 1000003  # apart lie the dropout seeds of two replicas


class Ran(NamedTuple):
    """What became of some steps.

    The seconds are those of this process, taken inside the compiled loop.

    Attributes:
        done: Steps that were done.
        loss: Of the last step, over all replicas.
        data_seconds: From asking for a batch to having it.
        communication_seconds: From having the gradients to having their sum over all replicas. It
            includes waiting for slower replicas. It is 0 with one replica, and on GPUs, where the
            sum runs beside the computation and nobody on the host sees when it ends.
    """

    done: int
    loss: float
    data_seconds: float
    communication_seconds: float


class Steps:
    """The compiled functions over some steps.

    Args:
        model: Compiled, built in the scope of the strategy.
        replicas: Of the job.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self.model = model
        self.replicas = replicas
        self._reduced_by_keras = _switch_off_reduction(model.optimizer)
        self._train = tf.function(self._train_in_graph)
        self._evaluate = tf.function(self._evaluate_in_graph)
        self._results = tf.function(lambda: model.get_metrics_result())

    def train(self, iterator: Iterator[Any], steps: int) -> Ran:
        """Train some steps; stop after one whose loss is not finite."""
        done, loss, data, communication = self._train(iterator, tf.constant(steps))
        if self._reduced_by_keras == [0]:
            raise StepError(
                "this version of Keras sums gradients in another place than the one this trainer"
                " switches off; install the versions of uv.lock"
            )
        return Ran(int(done), float(loss), float(data), float(communication))

    def evaluate(self, iterator: Iterator[Any], steps: int) -> None:
        """Update the metrics with some steps of another split."""
        self._evaluate(iterator, tf.constant(steps))

    def results(self) -> dict[str, float]:
        """Return the metrics over all replicas, the loss first."""
        found = {name: float(value) for name, value in self._results().items()}
        return {"loss": found.pop("loss")} | found

    def _train_in_graph(self, iterator: Any, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
        strategy = self.replicas.strategy
        done, loss = tf.constant(0), tf.constant(0.0)
        data = communication = tf.constant(0.0, tf.float64)
        while (done < steps) & tf.math.is_finite(loss):
            asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                batch = next(iterator)
            data += _timestamp(batch) - asked
            total, seconds = strategy.run(self._train_replica, args=(batch,))
            loss = strategy.experimental_local_results(total)[0]
            communication += strategy.experimental_local_results(seconds)[0]
            done += 1
        return done, loss, data, communication

    def _evaluate_in_graph(self, iterator: Any, steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            self.replicas.strategy.run(self._evaluate_replica, args=(next(iterator),))

    @tf.autograph.experimental.do_not_convert
    def _train_replica(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        x, y, weight = _unpack(batch)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            predicted = self.model(x, training=True)
            loss = self._loss(x, y, predicted, weight, training=True)
            scaled = self.model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        gradients, total, seconds = self._sum(gradients, tf.cast(loss, tf.float32))
        self.model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._update_metrics(x, y, predicted, weight, loss)
        return total, seconds

    @tf.autograph.experimental.do_not_convert
    def _evaluate_replica(self, batch: Any) -> None:
        x, y, weight = _unpack(batch)
        predicted = self.model(x, training=False)
        loss = self._loss(x, y, predicted, weight, training=False)
        self._update_metrics(x, y, predicted, weight, loss)

    def _loss(self, x: Any, y: Any, predicted: Any, weight: Any, training: bool) -> tf.Tensor:
        # Keras divides by the number of replicas here, so that a sum over them is the mean.
        return self.model.compute_loss(
            x=x, y=y, y_pred=predicted, sample_weight=weight, training=training
        )

    def _sum(self, gradients: list[Any], loss: tf.Tensor) -> tuple[list[Any], tf.Tensor, tf.Tensor]:
        """Return the gradients and the loss over all replicas, and the seconds that took."""
        seconds = tf.constant(0.0, tf.float64)
        if self.replicas.count == 1:
            return gradients, loss, seconds
        present = [at for at, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[at]) for at in present]
        context = tf.distribute.get_replica_context()
        ready = _timestamp([*dense, loss])
        *summed, total = context.all_reduce(tf.distribute.ReduceOp.SUM, [*dense, loss])
        if not tf.config.list_logical_devices("GPU"):
            seconds = _timestamp([*summed, total]) - ready
        result = list(gradients)
        for at, gradient in zip(present, summed, strict=True):
            result[at] = gradient
        return result, total, seconds

    def _update_metrics(self, x: Any, y: Any, predicted: Any, weight: Any, loss: Any) -> None:
        rows = tf.shape(x)[0]
        self.model._loss_tracker.update_state(loss * self.replicas.count, sample_weight=rows)
        self.model.compute_metrics(x, y, predicted, weight)


def separate_dropout(model: keras.Model, replicas: Replicas) -> None:
    """Give every replica random numbers of its own; Keras gives all of them the same.

    It is called when the states of all replicas are those of replica 0: after the model was built
    and after a checkpoint was restored.
    """
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            for replica, part in zip(replicas.mine, parts_of(generator.state), strict=True):
                seed, count = part.numpy()
                part.assign([(int(seed) + _STREAMS * replica) % 2**32, count])


def _timestamp(after: Any) -> tf.Tensor:
    """Return () float64, the time in seconds when all these tensors are there."""
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)):
        return tf.timestamp()


def _unpack(batch: Any) -> tuple[Any, Any, Any]:
    x, y, weight = batch
    return x, y, None if isinstance(weight, tuple) else weight


def _switch_off_reduction(optimizer: Any) -> list[int]:
    """Make the optimizer take gradients as they come; the list counts how often it asked."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    asked = [0]
    if not hasattr(inner, _REDUCE):
        raise StepError(f"this version of Keras has no {_REDUCE}; install that of uv.lock")

    def keep(gradients: Any) -> list[Any]:
        asked[0] += 1
        return list(gradients)

    # Keras tracks the attributes of an optimizer; this one is no state.
    object.__setattr__(inner, _REDUCE, keep)
    return asked
