"""Tests that the loss and every metric compare each row with its own label.

Shapes that do not match may still fit. Labels (rows,) fit outputs (rows, classes) in a batch with
as many rows as classes, and (rows,) against (rows, 1) becomes a comparison of all pairs. Such a
model trains without an error, and learns something else. So these tests take a number of rows that
is no other dimension, and random outputs, because a new model may give equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import compute_output_spec  # traces without creating or changing variables

from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset
from kfp_tfjob.trainer.inputs import first_rows
from kfp_tfjob.trainer.prediction import output_spec
from kfp_tfjob.trainer.replicas import Replicas
from kfp_tfjob.trainer.user_errors import last_line

# Of labels; a metric that counts rows may be equal for some of them by chance.
_SHIFTS = range(1, 8)
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.05  # relative
_NOTHING = 1e-6  # of labels of about 1


def tolerance_of(full: float) -> float:
    """Return the relative difference of equal values; `full` is that of 32 bits."""
    is_full = keras.mixed_precision.dtype_policy().compute_dtype == "float32"
    return full if is_full else _TOLERANCE_16_BITS


def mismatch(dataset: Dataset, received: str) -> Problem:
    """Return the problem of a loss or a metric that does not take this dataset's labels."""
    if dataset.task == CLASSIFICATION:
        labels = f"whole numbers from 0 to {dataset.num_classes - 1}"
        fix = "use a sparse_ loss and sparse_ metrics for classes, for example"
        fix += " sparse_categorical_crossentropy"
        if dataset.num_classes == 2:
            fix += ", or end the model with Dense(1) and a sigmoid and use binary_crossentropy"
        fix += "; in a subclass of a metric that has no sparse_ form, such as F1Score, encode the"
        fix += " labels (docs/own-model.md)"
    else:
        labels, fix = "float32", "use a loss and metrics for numbers, for example"
        fix += " mean_squared_error"
    return Problem(
        "the model's loss or metrics do not match the labels",
        received=received,
        expected=f"labels of shape (batch,), {labels}",
        fix=fix,
    )


def check_shapes(
    model: keras.Model, dataset: Dataset, output: Any, options: TrainerOptions
) -> None:
    """Check that the loss and the metrics take a batch of any number of rows.

    Args:
        model: The model, built.
        dataset: The training data.
        output: A KerasTensor of the model's output, (batch, columns).
        options: TRAIN_OPTIONS, for the weights of rows.

    Raises:
        ConfigurationError: Their shapes do not match.
    """
    rows = _rows(dataset, output)
    label = "int64" if dataset.task == CLASSIFICATION else "float32"
    x = keras.KerasTensor((rows, *dataset.input_shape))
    y = keras.KerasTensor((rows,), label)
    predicted = keras.KerasTensor((rows, output.shape[1]), output.dtype)
    weight = keras.KerasTensor((rows,)) if is_weighted(dataset, options) else None
    function, loss = loss_of(model), None
    try:
        if function:
            loss = compute_output_spec(function, x, y, predicted, weight)
        compute_output_spec(model.compute_metrics, x, y, predicted, weight)
    except Exception as error:
        raise ConfigurationError(mismatch(dataset, last_line(error))) from error
    if loss is not None and loss.shape != ():
        raise ConfigurationError(
            Problem(
                "the loss of a batch is not a single number",
                received=f"shape {loss.shape} for {rows} rows",
                expected="shape (), the mean over the rows",
                fix='remove reduction="none" from the loss, or end your own compute_loss with'
                " keras.ops.mean",
            )
        )


def check_values(
    model: keras.Model, dataset: Dataset, replicas: Replicas, options: TrainerOptions
) -> None:
    """Check what the loss and the metrics compute; every process must call this.

    Args:
        model: The model, built.
        dataset: The training data.
        replicas: The replicas of the job.
        options: TRAIN_OPTIONS, for the weights of rows.

    Raises:
        ConfigurationError: One does not compare each row with its own label.
    """
    output = output_spec(model, dataset)
    rows = _random_rows(model, dataset, output, is_weighted(dataset, options))
    # A square of small labels is smaller still.
    unit = min(1.0, float(np.abs(rows.y).max()) ** 2 if dataset.task != CLASSIFICATION else 1.0)
    tolerance = _Tolerance(tolerance_of(_TOLERANCE), _NOTHING * unit)
    try:
        ConfigurationError.raise_if(
            problem
            for measure in _measures(model, replicas, tolerance)
            for problem in _problems(measure, rows, dataset)
        )
    finally:
        model.reset_metrics()


class _Tolerance(NamedTuple):
    """The relative and the absolute difference of equal values."""

    relative: float
    absolute: float


class _Rows(NamedTuple):
    """A batch, and the outputs of a model for it.

    Attributes:
        x: (rows, *input_shape) float32; None if neither the loss nor a metric looks at it.
        y: (rows,) labels.
        predicted: (rows, columns) outputs.
        weight: (rows,) weights, or None.
    """

    x: tf.Tensor | None
    y: tf.Tensor
    predicted: tf.Tensor
    weight: tf.Tensor | None

    def reversed(self) -> _Rows:
        """Return the same rows in another order."""
        return _Rows(*(None if item is None else item[::-1] for item in self))


class _Measure:
    """The loss or a metric, computed as in a step.

    Args:
        name: Its name for messages.
        function: Returns a number, or a dict of numbers, for rows.
        replicas: The replicas of the job.
        tolerance: The difference of equal values.
        of_keras: Whether it is one of Keras's own.
        gradient: Of the loss, its gradient for the outputs of rows.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[_Rows], Any],
        replicas: Replicas,
        tolerance: _Tolerance,
        of_keras: bool = False,
        gradient: _Measure | None = None,
    ) -> None:
        self.name, self.of_keras, self.gradient = name, of_keras, gradient
        self._tolerance, self._strategy = tolerance, replicas.strategy
        self._run = tf.function(
            lambda rows: self._strategy.run(lambda: function(rows)), autograph=False
        )

    @property
    def is_loss(self) -> bool:
        """Whether it is the loss."""
        return self.gradient is not None

    def __call__(self, rows: _Rows) -> np.ndarray:
        """Return the values for rows, on the first replica of this process."""
        # A direct call would warn that every metric is traced.
        found = tf.nest.flatten(self._run.get_concrete_function(rows)(rows))
        local = (self._strategy.experimental_local_results(item)[0] for item in found)
        values = [np.asarray(item, np.float64).ravel() for item in local]
        return np.concatenate(values) if values else np.zeros(0)

    def equal(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Return whether two results of this measure are the same."""
        return one.shape == other.shape and bool(
            np.allclose(one, other, self._tolerance.relative, self._tolerance.absolute)
        )


def _measures(model: keras.Model, replicas: Replicas, tolerance: _Tolerance) -> Iterator[_Measure]:
    """Yield the loss and the metrics of a model, each alone."""
    loss = loss_of(model)

    def gradient(rows: _Rows) -> Any:
        assert loss
        with tf.GradientTape() as tape:
            tape.watch(rows.predicted)
            value = loss(*rows)
        unconnected = tf.UnconnectedGradients.ZERO
        return tape.gradient(value, rows.predicted, unconnected_gradients=unconnected)

    def own_metrics(rows: _Rows) -> Any:
        for metric in model.metrics:
            metric.reset_state()
        return model.compute_metrics(*rows)

    def of(metric: keras.Metric, weighted: bool) -> Callable[[_Rows], Any]:
        def value(rows: _Rows) -> Any:
            metric.reset_state()
            metric.update_state(rows.y, rows.predicted, *([rows.weight] if weighted else []))
            return metric.result()

        return value

    compiled = model._compile_metrics
    if loss:
        of_outputs, of_keras = _Measure("", gradient, replicas, tolerance), not is_own_loss(model)
        value = lambda rows: loss(*rows)  # noqa: E731
        yield _Measure("the loss", value, replicas, tolerance, of_keras, of_outputs)
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        yield _Measure("compute_metrics", own_metrics, replicas, tolerance)
    elif compiled is not None:
        with_weights = {
            id(metric)
            for several in compiled._flat_weighted_metrics
            for metric in (several.metrics if several else ())
        }
        for metric in compiled.metrics:
            function = of(metric, id(metric) in with_weights)
            name = f"the metric {metric.name}"
            yield _Measure(name, function, replicas, tolerance, _is_of_keras(metric))


def loss_of(model: keras.Model) -> Callable[..., Any] | None:
    """Return the function from (x, y, outputs, weights) to the loss without what layers add to it.

    It is None if the model has no loss. Layers add tensors of their last call, which was in another
    graph.
    """
    if type(model).compute_loss is not keras.Model.compute_loss:

        def own(*rows: Any) -> Any:
            model._clear_losses()
            return model._compute_loss(*rows, training=False)

        return own
    compiled = model._compile_loss
    return compiled and (lambda x, y, predicted, weight: compiled(y, predicted, weight))


def _problems(measure: _Measure, rows: _Rows, dataset: Dataset) -> Iterator[Problem]:
    """Yield what is wrong with the loss or a metric."""
    try:
        value, again = measure(rows), measure(rows)
        other_order = measure(rows.reversed())
    except Exception as error:
        yield mismatch(dataset, f"{measure.name}: {last_line(error)}")
        return
    if not (np.isfinite(value).all() and measure.equal(value, again)):
        return  # it is random, or undefined for random outputs
    if not measure.is_loss and not measure.equal(value, other_order):
        received = f"{measure.name} has another value for the same rows in another order"
        yield mismatch(dataset, received)
    elif measure.of_keras and _ignores_outputs(measure, rows, value):
        yield mismatch(dataset, f"{measure.name} has the same value for any output")
    elif not (measure.is_loss and measure.of_keras):
        # The weights may meet the right label, or the right output.
        if _mixes(measure, rows, "y") or _mixes(measure, rows, "y", "weight"):
            yield _pairs(measure, "label")
        elif rows.weight is not None and _mixes(measure, rows, "weight"):
            yield _pairs(measure, "weight")


def _ignores_outputs(measure: _Measure, rows: _Rows, value: np.ndarray) -> bool:
    """Return whether nothing that a model can learn changes a value of Keras.

    With several columns, a metric may be the same for good reasons: top 5 of 3 classes.
    """
    if measure.gradient:
        return not np.any(measure.gradient(rows))
    predicted, ones = rows.predicted, tf.ones_like(rows.predicted)
    others = (predicted[::-1], 0.01 * ones, 0.99 * ones, -predicted)
    return predicted.shape[1] == 1 and all(
        measure.equal(value, measure(rows._replace(predicted=item))) for item in others
    )


def _mixes(measure: _Measure, rows: _Rows, what: str, *its: str) -> bool:
    """Return whether labels or weights meet every row.

    Then their order does not count, until a dimension is added to them or taken from the outputs.
    A mean of all labels has no order in any shape.

    Args:
        measure: The loss or a metric.
        rows: The rows.
        what: The field that may meet every row.
        *its: Fields that belong to it.
    """
    if _has_order(measure, rows, what, *its):
        return False
    others = [rows._replace(**{what: getattr(rows, what)[:, None]})]
    if rows.predicted.shape[1] == 1:
        others.append(rows._replace(predicted=rows.predicted[:, 0]))
    for other in others:
        with suppress(Exception):  # it does not take this shape
            if _has_order(measure, other, what, *its):
                return True
    return False


def _has_order(measure: _Measure, rows: _Rows, *fields: str) -> bool:
    """Return whether a value changes with the order of some fields."""
    value = measure(rows)
    given = {name: item for name in fields if (item := getattr(rows, name)) is not None}
    return not all(
        measure.equal(
            value,
            measure(rows._replace(**{name: tf.roll(it, shift, 0) for name, it in given.items()})),
        )
        for shift in _SHIFTS
    )


def _pairs(measure: _Measure, what: str) -> Problem:
    argument = "y_true" if what == "label" else "sample_weight"
    fix = f"give both the same shape: {argument} = tf.reshape({argument}, tf.shape(y_pred))"
    if measure.of_keras:
        fix = f"call it in a function of your own, and {fix}"
    return Problem(
        f"{measure.name} compares every {what} with every row",
        received=f"the same value with the {what}s in another order",
        expected=f"a value from each row and its own {what}: the {what}s have the shape (rows,),"
        " and an output may have (rows, 1)",
        fix=fix,
    )


def is_weighted(dataset: Dataset, options: TrainerOptions) -> bool:
    """Return whether rows have weights."""
    return options.class_weight is not None or dataset.row_weights is not None


def is_own_loss(model: keras.Model) -> bool:
    """Return whether a loss is the user's code; a loss of Keras fits if its shapes do."""
    losses = filter(None, map(keras.losses.get, tf.nest.flatten(model.loss)))
    code = [type(model).compute_loss, *(getattr(item, "fn", item) for item in losses)]
    return not all(is_code_of_keras(item) for item in code)


def _is_of_keras(metric: keras.Metric) -> bool:
    function = getattr(metric, "_fn", None)
    return all(is_code_of_keras(item) for item in (type(metric), function) if item is not None)


def is_code_of_keras(item: Any) -> bool:
    """Return whether a class or a function belongs to Keras."""
    return str(getattr(item, "__module__", "")).startswith("keras.")


def _rows(dataset: Dataset, output: Any) -> int:
    """Return a number of rows that is no other dimension."""
    others = {*dataset.input_shape, *output.shape[1:], dataset.num_classes}
    return next(rows for rows in count(64, 16) if rows not in others)


def _random_rows(model: keras.Model, dataset: Dataset, output: Any, weighted: bool) -> _Rows:
    """Return rows with random labels, and outputs that a trained model may give."""
    random, rows, columns = np.random.default_rng(0), _rows(dataset, output), output.shape[1]
    noise = random.normal(size=(rows, columns))
    if dataset.task == CLASSIFICATION:
        y = random.integers(0, dataset.num_classes, rows)
        predicted = np.exp(noise) / np.exp(noise).sum(1, keepdims=True)
        if columns == 1:
            predicted = random.uniform(0.05, 0.95, (rows, 1))
    else:
        # Of the real labels, because a loss may need positive ones.
        y = first_rows(dataset, rows)[1]
        predicted = random.permutation(y)[:, None] * random.uniform(0.8, 1.2, (rows, 1))
    weight = random.uniform(0.5, 1.5, rows).astype(np.float32) if weighted else None
    kinds = (type(model), keras.Model)
    looks = len({(kind.compute_loss, kind.compute_metrics) for kind in kinds}) > 1
    return _Rows(
        tf.constant(first_rows(dataset, rows)[0]) if looks else None,
        tf.constant(y),
        tf.constant(predicted, output.dtype),
        None if weight is None else tf.constant(weight),
    )
