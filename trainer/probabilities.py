"""Decides how a classifier's outputs become probabilities, and tests the result.

The exported model answers with probabilities, but a model may end in logits, and only its loss
shows that. A sigmoid too many gives every row the same class, and training does not notice, because
Keras computes metrics from the outputs. So the trainer looks at the model's last operation and at
the outputs that the loss prefers. What does not match is rejected before training. Before the
export, the trained model's answers are tested with the labels of some rows. Called by
`__main__.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.served_model import not_probabilities

from .dataset import CLASSIFICATION, Dataset
from .inputs import first_rows
from .label_test import is_code_of_keras, loss_of
from .prediction import predict, to_probabilities
from .replicas import Replicas
from .self_test import as_step, unchanged

_ROWS = 64  # enough to tell logits from probabilities; every training begins with this
# Operations that only change the shape or the type of their input.
_PASS_THROUGH = {
    "Identity",
    "Cast",
    "Reshape",
    "Squeeze",
    "ExpandDims",
    "EnsureShape",
    "StridedSlice",
}
_SUMS = {"BiasAdd", "Add", "AddV2", "Sub"}
_PRODUCTS = {"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D"}
_SOFTMAX, _SIGMOID, _LOG_SOFTMAX, _LINEAR = "Softmax", "Sigmoid", "LogSoftmax", "linear"
_SMALLEST = 1e-7  # probability: a smaller one counts as this one, because log(0) is infinite


class _Outputs(NamedTuple):
    """The outputs of a model for some rows.

    Attributes:
        x: (rows, *input_shape) float32.
        y: (rows,) labels.
        values: (rows, columns) float32 outputs.
        last_operation: The type of the last operation that computes them, or `linear`.
        is_bypassed: Whether the loss is computed from the inputs of that operation. Keras does this
            after a sigmoid or a softmax, for either value of `from_logits`.
    """

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    last_operation: str
    is_bypassed: bool

    @property
    def columns(self) -> int:
        """The number of outputs of a row."""
        return self.values.shape[1]


def check(model: keras.Model, dataset: Dataset, replicas: Replicas, rows: int = _ROWS) -> bool:
    """Check that the exported model will return probabilities; every process must call this.

    Args:
        model: The model, built.
        dataset: The training data. The rows are of its validation split, if that is not empty.
        replicas: The replicas of the job.
        rows: The largest number of rows that a replica can process at once.

    Returns:
        Whether the outputs are logits; False for a regression.

    Raises:
        ConfigurationError: They are neither logits nor probabilities, or the loss takes
            probabilities for logits.
    """
    if dataset.task != CLASSIFICATION:
        return False
    with unchanged(model):
        outputs = _outputs(model, dataset, replicas, min(rows, _ROWS))
        logits = _are_logits(model, dataset, replicas, outputs)
    if problem := _problem(model, outputs, logits):
        raise ConfigurationError(problem)
    return logits


def _outputs(model: keras.Model, dataset: Dataset, replicas: Replicas, rows: int) -> _Outputs:
    """Run the model on some rows, preferably of the validation split."""
    split = "validation" if dataset.rows.get("validation") else "train"
    x, y, _ = first_rows(dataset, rows, split)
    loss = _loss(model) if _is_from_logits(model) else None
    ends, gradients = [], []

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        predicted = predict(model, x)
        ends.append(_last_operation_type(predicted))
        if loss is not None:
            with tf.GradientTape() as tape:
                tape.watch(predicted)
                value = loss(y, predicted)
            gradients.append(tape.gradient(value, predicted))
        return tf.cast(predicted, tf.float32)

    values = as_step(model, replicas, step)(tf.constant(x), tf.constant(y)).numpy()
    return _Outputs(x, y, values, ends[0], any(gradient is None for gradient in gradients))


def _last_operation_type(tensor: tf.Tensor) -> str:
    """Return the type of the operation that a tensor comes from, or `linear`."""
    return _LINEAR if _is_linear(tensor) else _operation(tensor).type


def _operation(tensor: tf.Tensor) -> tf.Operation:
    """Return the operation that computes a tensor, apart from changes of shape or type."""
    operation = tensor.op
    while operation.type in _PASS_THROUGH:
        operation = operation.inputs[0].op
    return operation


def _is_linear(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is a product with weights, or a sum with one, and so unbounded."""
    operation = _operation(tensor)
    sums = operation.type in _SUMS and any(map(_is_linear, operation.inputs))
    return operation.type in _PRODUCTS or sums


def _loss(model: keras.Model) -> Any:
    """Return the compiled loss; None if the model computes its loss in another way."""
    losses = getattr(model._compile_loss, "_flat_losses", None) or ()
    has_own = type(model).compute_loss is not keras.Model.compute_loss
    return None if has_own or len(losses) != 1 else losses[0].loss


def _is_from_logits(model: keras.Model) -> bool:
    """Return whether the loss is one of Keras with from_logits=True."""
    loss = _loss(model)
    return is_code_of_keras(type(loss)) and bool(getattr(loss, "from_logits", False))


def _are_logits(
    model: keras.Model, dataset: Dataset, replicas: Replicas, outputs: _Outputs
) -> bool:
    """Return whether the outputs are logits: by the last operation, or else by the loss."""
    if outputs.last_operation in (_SOFTMAX, _SIGMOID, _LOG_SOFTMAX):
        return outputs.last_operation == _LOG_SOFTMAX
    # One small number may be a logit too, so the loss decides.
    may_be_logits = outputs.last_operation == _LINEAR or (
        outputs.columns == 1 and _is_from_logits(model)
    )
    if not may_be_logits and not not_probabilities(_unconverted(outputs)).any():
        return False
    return _prefers_logits(model, dataset, replicas, outputs)


def _prefers_logits(
    model: keras.Model, dataset: Dataset, replicas: Replicas, outputs: _Outputs
) -> bool:
    """Return whether the loss falls when correct outputs exceed the range from 0 to 1.

    A cross-entropy from logits does, and so does a hinge loss. A squared error rises, and a
    cross-entropy from probabilities clips them.
    """
    classes = np.arange(len(outputs.x)) % dataset.num_classes
    right = classes[:, None] if outputs.columns == 1 else np.eye(dataset.num_classes)[classes]
    x, y = tf.constant(outputs.x), tf.constant(classes.astype(outputs.y.dtype))

    function = loss_of(model)
    if function is None:
        return True
    loss = as_step(model, replicas, lambda x, y, predicted: function(x, y, predicted, None))
    try:
        value, *beyond = (
            float(loss(x, y, tf.constant(scores, tf.float32)))
            for scores in (right, 2 * right - 1, 2 * right)
        )
    except StepError:  # it fails on such scores
        value, beyond = np.nan, []
    if not np.isfinite(value):
        return True  # the loss cannot show it, so the last operation decides
    return any(loss_beyond < value - 1e-6 * max(1, abs(value)) for loss_beyond in beyond)


def _problem(model: keras.Model, outputs: _Outputs, logits: bool) -> Problem | None:
    """Return the problem of outputs that do not become probabilities; None without a problem."""
    single_output = outputs.columns == 1
    activation = "sigmoid" if single_output else "softmax"
    loss = "BinaryCrossentropy" if single_output else "SparseCategoricalCrossentropy"
    expected = "values from 0 to 1" + (
        ", the probability of the second class" if single_output else ""
    )
    expected += "" if single_output else " with a sum of 1 in each row"
    fix = f"end the model with a {activation}"
    summary = "the model does not return probabilities"
    if outputs.last_operation == _LINEAR and not logits:
        received = "outputs of a layer without an activation, and a loss that takes no logits"
        fix += f", or use the loss keras.losses.{loss}(from_logits=True)"
        return Problem(summary, received, expected, fix, name="not-probabilities")
    if outputs.last_operation == _SIGMOID and not single_output:
        received = f"a sigmoid for each of {outputs.columns} classes"
        return Problem(summary, received, expected, fix, name="not-probabilities")
    probabilities = to_probabilities(tf.constant(outputs.values), logits).numpy()
    is_invalid = not_probabilities(probabilities)
    if is_invalid.any():
        outputs_text = listed([f"{value:.4g}" for value in outputs.values[is_invalid][0]], 10)
        received = f"a row with the outputs {outputs_text}"
        return Problem(summary, received, expected, fix, name="not-probabilities")
    if not logits and _is_from_logits(model) and not outputs.is_bypassed:
        return Problem(
            f"the loss applies a {activation} to probabilities",
            received=f"a loss with from_logits=True, and outputs that are {expected}",
            expected="from_logits=True only for a model without a last activation",
            fix="remove from_logits=True, or the last activation",
            name="not-probabilities",
        )
    # Keras's loss proves that a linear layer returns logits; they may be from 0 to 1 by chance.
    is_certain = outputs.last_operation == _LINEAR and _is_from_logits(model)
    if logits and not is_certain and _predict_better_unconverted(outputs, probabilities):
        return Problem(
            f"the exported model would apply a {activation} to probabilities",
            received=f"outputs that predict the labels of {len(outputs.y)} rows better as they are",
            expected="logits, because the loss prefers outputs beyond 0 and 1",
            fix=f"end the model with a Dense layer that has no activation, or with a {activation}"
            " and a loss from probabilities",
            name="not-probabilities",
        )
    return None


def _unconverted(outputs: _Outputs) -> np.ndarray:
    """Return the outputs as (rows, classes) probabilities, as if they were not logits."""
    return to_probabilities(tf.constant(outputs.values), False).numpy()


def _predict_better_unconverted(outputs: _Outputs, probabilities: np.ndarray) -> bool:
    """Return whether outputs that are treated as logits are probabilities already.

    If so, they are between 0 and 1, near both, and predict the labels better than `probabilities`.
    """
    unconverted = _unconverted(outputs)
    if not_probabilities(unconverted).any() or unconverted.min() > 0.25 or unconverted.max() < 0.75:
        return False
    label_index = np.arange(len(outputs.y)), outputs.y.astype(np.int64)
    log_likelihood, unconverted_log_likelihood = (
        np.log(candidate[label_index].clip(_SMALLEST)).mean()
        for candidate in (probabilities, unconverted)
    )
    return bool(unconverted_log_likelihood > log_likelihood)
