"""What a classifier's outputs are, and models whose export would answer something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops

from kfp_tfjob.trainer import probabilities, user_model
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.export import export
from kfp_tfjob.trainer.replicas import Replicas
from tests.local import tiny_dataset
from tests.problems import problem_of

FEATURES = len(tiny_dataset.FEATURES)
# Keras warns of the mistakes that are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*received .from_logits:UserWarning")
ALONE = Replicas(tf.distribute.get_strategy())
BINARY, SPARSE = losses.BinaryCrossentropy, losses.SparseCategoricalCrossentropy


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_dataset, "CLASSES", ("no", "yes"))
        return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("two")))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("three")))


def model(*parts: Any, loss: Any, kind: type[keras.Model] = keras.Model) -> keras.Model:
    """Return a model that ends in some layers, the last of them with one or three outputs."""
    inputs = x = keras.Input((FEATURES,))
    for part in parts:
        x = part(x)
    found = kind(inputs, x)
    found.compile("adam", loss, metrics=["accuracy"])
    return found


def linear(columns: int, **more: Any) -> layers.Layer:
    return layers.Dense(columns, **more)


def zero(columns: int, activation: str | None = None) -> layers.Layer:
    """A layer that is often the last: at first, it returns the same for all rows."""
    return layers.Dense(columns, activation, kernel_initializer="zeros")


def both(columns: int, activation: str) -> Callable[[Any], Any]:
    def mean(x: Any) -> Any:
        return layers.Average()([layers.Dense(columns, activation)(x) for _ in range(2)])

    return mean


def column(y: Any) -> Any:
    return ops.cast(ops.reshape(y, (-1, 1)), "float32")


def own_logits(y: Any, predicted: Any) -> Any:
    return tf.nn.weighted_cross_entropy_with_logits(column(y), predicted, pos_weight=3.0)


def own_squared(y: Any, predicted: Any) -> Any:
    return ops.mean(ops.square(column(y) - predicted), axis=-1)


def own_likelihood(y: Any, predicted: Any) -> Any:
    return -ops.sum(ops.one_hot(ops.cast(y, "int32"), 3) * predicted, axis=-1)


def own_focal(y: Any, predicted: Any) -> Any:
    """A loss without bounds, which falls beyond 1."""
    right = ops.one_hot(ops.cast(y, "int32"), 3) * ops.log(predicted + 1e-7)
    return -ops.sum((1 - predicted) ** 2 * right, axis=-1)


class Subclass(keras.Model):
    def __init__(self, columns: int, activation: str | None) -> None:
        super().__init__()
        self.out = layers.Dense(columns)
        self.arguments = {"columns": columns, "activation": activation}

    def call(self, x: Any) -> Any:
        return keras.activations.get(self.arguments["activation"])(self.out(x))

    def get_config(self) -> dict[str, Any]:
        return dict(self.arguments)


def subclass(columns: int, activation: str | None, loss: Any) -> keras.Model:
    found = Subclass(columns, activation)
    found.compile("adam", loss)
    return found


class OwnLoss(keras.Model):
    """A squared error in compute_loss."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        return ops.mean(own_squared(y, y_pred))


Make = Callable[[], keras.Model]
# Whether the outputs are logits.
ANSWERS: dict[str, tuple[bool, str, Make]] = {
    "softmax, from_logits": (
        False,
        "three",
        lambda: model(linear(3, activation="softmax"), loss=SPARSE(from_logits=True)),
    ),
    "sigmoid, from_logits": (
        False,
        "two",
        lambda: model(linear(1, activation="sigmoid"), loss=BINARY(from_logits=True)),
    ),
    "softmax of a subclass, from_logits": (
        False,
        "three",
        lambda: subclass(3, "softmax", SPARSE(from_logits=True)),
    ),
    "softmax, own loss": (
        False,
        "three",
        lambda: model(linear(3, activation="softmax"), loss=own_focal),
    ),
    "sigmoid, squared error": (
        False,
        "two",
        lambda: model(linear(1, activation="sigmoid"), loss="mse"),
    ),
    "mean of two": (False, "three", lambda: model(both(3, "softmax"), loss=SPARSE())),
    "linear, from_logits": (True, "three", lambda: model(linear(3), loss=SPARSE(from_logits=True))),
    "linear of a subclass": (True, "two", lambda: subclass(1, None, BINARY(from_logits=True))),
    "zeros, from_logits": (True, "two", lambda: model(zero(1), loss=BINARY(from_logits=True))),
    "focal": (
        True,
        "two",
        lambda: model(linear(1), loss=losses.BinaryFocalCrossentropy(from_logits=True)),
    ),
    "half a temperature": (
        True,
        "two",
        lambda: model(zero(1), layers.Rescaling(2.0), loss=BINARY(from_logits=True)),
    ),
    "own, reshaped": (True, "two", lambda: model(linear(1), layers.Reshape((1,)), loss=own_logits)),
    "own, of zeros": (True, "two", lambda: model(zero(1), loss=own_logits)),
    "hinge": (True, "two", lambda: model(linear(1), loss="hinge")),
    "Hinge": (True, "two", lambda: model(linear(1), loss=losses.Hinge())),
    "log_softmax": (
        True,
        "three",
        lambda: model(linear(3, activation="log_softmax"), loss=own_likelihood),
    ),
}
# A part of what is received, and what to do.
REFUSED: dict[str, tuple[str, str, str, Make]] = {
    **{
        f"linear, {name}": ("two", "without an activation", "sigmoid", make)
        for name, make in {
            "mse": lambda: model(linear(1), loss="mse"),
            "MeanSquaredError": lambda: model(linear(1), loss=losses.MeanSquaredError()),
            "Huber": lambda: model(linear(1), loss=losses.Huber()),
            "own": lambda: model(linear(1), loss=own_squared),
            "own compute_loss": lambda: model(linear(1), loss=None, kind=OwnLoss),
            "binary_crossentropy": lambda: model(linear(1), loss="binary_crossentropy"),
            "zeros": lambda: model(zero(1), loss="binary_crossentropy"),
        }.items()
    },
    "linear classes": (
        "three",
        "without an activation",
        "SparseCategoricalCrossentropy(from_logits=True)",
        lambda: model(linear(3), loss="sparse_categorical_crossentropy"),
    ),
    "sigmoids": (
        "three",
        "a sigmoid for each of 3 classes",
        "softmax",
        lambda: model(zero(3, "sigmoid"), loss="sparse_categorical_crossentropy"),
    ),
    "relu": (
        "three",
        "a row with the outputs",
        "softmax",
        lambda: model(linear(3, activation="relu"), loss="sparse_categorical_crossentropy"),
    ),
    # Keras looks at the last operation, and only in some losses.
    "focal": (
        "two",
        "from_logits=True",
        "remove",
        lambda: model(
            linear(1, activation="sigmoid"), loss=losses.BinaryFocalCrossentropy(from_logits=True)
        ),
    ),
    "a cast": (
        "three",
        "from_logits=True",
        "remove",
        lambda: model(
            linear(3, activation="softmax", dtype="mixed_float16"),
            layers.Activation("linear", dtype="float32"),
            loss=SPARSE(from_logits=True),
        ),
    ),
    "mean of two": (
        "three",
        "from_logits=True",
        "remove",
        lambda: model(both(3, "softmax"), loss=SPARSE(from_logits=True)),
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_answers_are_the_outputs_or_their_softmax(
    two: Dataset, three: Dataset, case: str
) -> None:
    logits, name, make = ANSWERS[case]
    dataset, found = {"two": two, "three": three}[name], make()
    user_model.check(found, make, dataset, 1)
    weights = found.get_weights()
    assert probabilities.check(found, dataset, ALONE) == logits
    assert all(map(np.array_equal, weights, found.get_weights()))


@pytest.mark.parametrize("case", REFUSED)
def test_outputs_that_are_neither_are_refused(two: Dataset, three: Dataset, case: str) -> None:
    name, received, fix, make = REFUSED[case]
    dataset, found = {"two": two, "three": three}[name], make()
    user_model.check(found, make, dataset, 1)
    problem = problem_of(probabilities.check, found, dataset, ALONE)
    assert received in problem.received and fix in problem.fix


def test_a_model_that_says_from_logits_of_a_sigmoid_answers_as_it_predicts(
    two: Dataset, tmp_path: Path
) -> None:
    """Each row of such a model got the class 1 in the export, although it was right in training."""
    _, _, make = ANSWERS["sigmoid, from_logits"]
    found = make()
    user_model.check(found, make, two, 1)
    rows = np.random.default_rng(0).normal(3, 2, (9, FEATURES)).astype(np.float32)
    export(found, two, tmp_path, probabilities.check(found, two, ALONE))
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serve_packed"]
    answers = served(features=tf.constant(rows))["probabilities"].numpy()
    np.testing.assert_allclose(answers[:, 1:], found.predict(rows, verbose=0), rtol=1e-6)


@pytest.mark.parametrize(("logit", "label"), [(0.0, 0), (0.85, 1)])
def test_logits_of_a_linear_layer_may_look_like_probabilities(
    two: Dataset, monkeypatch: pytest.MonkeyPatch, logit: float, label: int
) -> None:
    """Of a rare class at first, and of a frequent one with a weak signal once trained."""

    def make() -> keras.Model:
        return model(zero(1), loss=BINARY(from_logits=True))

    found = make()
    user_model.check(found, make, two, 1)
    found.layers[-1].bias.assign([logit])
    x, y, weights = probabilities.first_rows(two, 64)
    rows = x, np.full_like(y, label), weights
    monkeypatch.setattr(probabilities, "first_rows", lambda *_: rows)
    assert probabilities.check(found, two, ALONE)


def test_trained_outputs_that_are_better_as_they_are_are_refused(two: Dataset) -> None:
    """Nothing shows before training that these are not logits."""

    def make() -> keras.Model:
        return model(both(1, "sigmoid"), loss=BINARY(from_logits=True))

    found = make()
    user_model.check(found, make, two, 1)
    # A few of all random weights already predict well enough to show it.
    found.set_weights([np.zeros_like(weights) for weights in found.get_weights()])
    assert probabilities.check(found, two, ALONE)
    x, y, _ = probabilities.first_rows(two, 2000)
    scale = 1 / two.std
    for layer in found.layers:
        if isinstance(layer, layers.Dense):
            weights = np.linalg.lstsq((x - two.mean) * scale, 4.0 * y - 2, rcond=None)[0] * scale
            layer.set_weights([5 * weights[:, None], -5 * (two.mean @ weights)[None]])
    problem = problem_of(probabilities.check, found, two, ALONE)
    assert "better as they are" in problem.received
