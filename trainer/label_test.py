"""Tests that the loss and every metric compare each row with its own label.

Shapes that do not match may still fit. Labels (rows,) fit outputs (rows, classes) in a batch with
as many rows as classes, and (rows,) against (rows, 1) becomes a comparison of all pairs. Such a
model trains without an error, and learns something else. So these tests take a number of rows that
is no other dimension, and random outputs, because a new model may give equal ones. Called by
`__main__.py`.
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

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.train import TrainerOptions

from .dataset import CLASSIFICATION, Dataset
from .inputs import first_rows
from .prediction import output_spec
from .replicas import Replicas
from .user_errors import last_line

# Rotations of the labels: a metric that counts rows may be equal after some of them by chance.
_SHIFTS = range(1, 8)
# Relative: rounding errors of a sum over a batch in 32 bits, and in 16 bits.
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 0.05
_ABSOLUTE_TOLERANCE = 1e-6  # for losses near 0 of labels of about 1: eight float32 epsilons


def tolerance_of(tolerance_32_bits: float) -> float:
    """Return `tolerance_32_bits`, or the larger relative tolerance of mixed precision."""
    is_full = keras.mixed_precision.dtype_policy().compute_dtype == "float32"
    return tolerance_32_bits if is_full else _TOLERANCE_16_BITS


def mismatch(dataset: Dataset, received: str) -> Problem:
    """Return the problem of a loss or a metric that does not accept this dataset's labels."""
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
        name="loss-mismatch",
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
                name="loss-mismatch",
            )
        )


def check_values(
    model: keras.Model, dataset: Dataset, replicas: Replicas, options: TrainerOptions
) -> None:
    """Check the values of the loss and the metrics; every process must call this.

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
    tolerance = _Tolerance(tolerance_of(_TOLERANCE), _ABSOLUTE_TOLERANCE * unit)
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
        x: (rows, *input_shape) float32; None if neither the loss nor a metric uses it.
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
        return _Rows(*(None if field is None else field[::-1] for field in self))


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
        distributed = tf.nest.flatten(self._run.get_concrete_function(rows)(rows))
        local = (self._strategy.experimental_local_results(value)[0] for value in distributed)
        values = [np.asarray(value, np.float64).ravel() for value in local]
        return np.concatenate(values) if values else np.zeros(0)

    def equal(self, first: np.ndarray, second: np.ndarray) -> bool:
        """Return whether two results of this measure are the same."""
        return first.shape == second.shape and bool(
            np.allclose(first, second, self._tolerance.relative, self._tolerance.absolute)
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

    def metric_function(metric: keras.Metric, weighted: bool) -> Callable[[_Rows], Any]:
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
            function = metric_function(metric, id(metric) in with_weights)
            name = f"the metric {metric.name}"
            yield _Measure(name, function, replicas, tolerance, _is_of_keras(metric))


def loss_of(model: keras.Model) -> Callable[..., Any] | None:
    """Return the function from (x, y, outputs, weights) to the loss; None for a model without one.

    The layers' additions to the loss are excluded, because they are tensors of the layers' last
    call, which was in another graph.
    """
    if type(model).compute_loss is not keras.Model.compute_loss:

        def own(*rows: Any) -> Any:
            model._clear_losses()
            return model._compute_loss(*rows, training=False)

        return own
    compiled = model._compile_loss
    return compiled and (lambda x, y, predicted, weight: compiled(y, predicted, weight))


def _problems(measure: _Measure, rows: _Rows, dataset: Dataset) -> Iterator[Problem]:
    """Yield the problem of a loss or a metric that does not compare each row with its own label."""
    try:
        original, repeated = measure(rows), measure(rows)
        reordered = measure(rows.reversed())
    except Exception as error:
        yield mismatch(dataset, f"{measure.name}: {last_line(error)}")
        return
    if not (np.isfinite(original).all() and measure.equal(original, repeated)):
        return  # it is random, or undefined for random outputs
    if not measure.is_loss and not measure.equal(original, reordered):
        received = f"{measure.name} has another value for the same rows in another order"
        yield mismatch(dataset, received)
    elif measure.of_keras and _ignores_outputs(measure, rows, original):
        yield mismatch(dataset, f"{measure.name} has the same value for any output")
    elif not (measure.is_loss and measure.of_keras):
        # The weights may belong to the right label, or to the right output.
        if _pairs_all_rows(measure, rows, "y") or _pairs_all_rows(measure, rows, "y", "weight"):
            yield _all_pairs_problem(measure, "label")
        elif rows.weight is not None and _pairs_all_rows(measure, rows, "weight"):
            yield _all_pairs_problem(measure, "weight")


def _ignores_outputs(measure: _Measure, rows: _Rows, value: np.ndarray) -> bool:
    """Return whether the outputs do not change the value of Keras's loss or metric.

    Only an output of one column is tested for metrics, because a metric of several columns may be
    constant for a good reason, such as the top 5 of 3 classes.
    """
    if measure.gradient:
        return not np.any(measure.gradient(rows))
    predicted, ones = rows.predicted, tf.ones_like(rows.predicted)
    other_outputs = (predicted[::-1], 0.01 * ones, 0.99 * ones, -predicted)
    return predicted.shape[1] == 1 and all(
        measure.equal(value, measure(rows._replace(predicted=outputs))) for outputs in other_outputs
    )


def _pairs_all_rows(measure: _Measure, rows: _Rows, field: str, *related_fields: str) -> bool:
    """Return whether a measure compares each label or weight with all rows, not its own row only.

    If so, the order of the labels does not change the value, until a dimension is added to them or
    removed from the outputs. A mean of all labels does not depend on the order in any shape.

    Args:
        measure: The loss or a metric.
        rows: The rows.
        field: `y` or `weight`.
        *related_fields: Fields that are reordered together with it.
    """
    if _has_order(measure, rows, field, *related_fields):
        return False
    reshaped_rows = [rows._replace(**{field: getattr(rows, field)[:, None]})]
    if rows.predicted.shape[1] == 1:
        reshaped_rows.append(rows._replace(predicted=rows.predicted[:, 0]))
    for reshaped in reshaped_rows:
        with suppress(Exception):  # it does not take this shape
            if _has_order(measure, reshaped, field, *related_fields):
                return True
    return False


def _has_order(measure: _Measure, rows: _Rows, *fields: str) -> bool:
    """Return whether the measure's value changes if these fields are rotated along the rows."""
    value = measure(rows)
    columns = {name: column for name in fields if (column := getattr(rows, name)) is not None}
    return not all(
        measure.equal(
            value,
            measure(
                rows._replace(
                    **{name: tf.roll(column, shift, 0) for name, column in columns.items()}
                )
            ),
        )
        for shift in _SHIFTS
    )


def _all_pairs_problem(measure: _Measure, quantity: str) -> Problem:
    """Return the problem of a measure that compares all pairs of rows: labels, or weights."""
    argument = "y_true" if quantity == "label" else "sample_weight"
    fix = f"give both the same shape: {argument} = tf.reshape({argument}, tf.shape(y_pred))"
    if measure.of_keras:
        fix = f"call it in a function of your own, and {fix}"
    return Problem(
        f"{measure.name} compares every {quantity} with every row",
        received=f"the same value with the {quantity}s in another order",
        expected=f"a value from each row and its own {quantity}: the {quantity}s have the shape"
        " (rows,), and an output may have (rows, 1)",
        fix=fix,
        name="loss-not-per-row",
    )


def is_weighted(dataset: Dataset, options: TrainerOptions) -> bool:
    """Return whether rows have weights."""
    return options.class_weight is not None or dataset.row_weights is not None


def is_own_loss(model: keras.Model) -> bool:
    """Return whether a loss is the user's code; for Keras's own, checking the shapes is enough."""
    losses = filter(None, map(keras.losses.get, tf.nest.flatten(model.loss)))
    code = [type(model).compute_loss, *(getattr(loss, "fn", loss) for loss in losses)]
    return not all(is_code_of_keras(function) for function in code)


def _is_of_keras(metric: keras.Metric) -> bool:
    function = getattr(metric, "_fn", None)
    return all(is_code_of_keras(code) for code in (type(metric), function) if code is not None)


def is_code_of_keras(code: Any) -> bool:
    """Return whether a class or a function belongs to Keras."""
    return str(getattr(code, "__module__", "")).startswith("keras.")


def _rows(dataset: Dataset, output: Any) -> int:
    """Return a number of rows that differs from every other dimension."""
    dimensions = {*dataset.input_shape, *output.shape[1:], dataset.num_classes}
    return next(rows for rows in count(64, 16) if rows not in dimensions)


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
        # From the real labels, because a loss may need positive ones.
        y = first_rows(dataset, rows)[1]
        predicted = random.permutation(y)[:, None] * random.uniform(0.8, 1.2, (rows, 1))
    weight = random.uniform(0.5, 1.5, rows).astype(np.float32) if weighted else None
    kinds = (type(model), keras.Model)
    uses_inputs = len({(kind.compute_loss, kind.compute_metrics) for kind in kinds}) > 1
    return _Rows(
        tf.constant(first_rows(dataset, rows)[0]) if uses_inputs else None,
        tf.constant(y),
        tf.constant(predicted, output.dtype),
        None if weight is None else tf.constant(weight),
    )
