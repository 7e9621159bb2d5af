"""Losses and metrics that fit the labels only by chance, and those that fit."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import losses, metrics

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.trainer import label_test, self_test, user_model
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.replicas import Replicas
from tests.local import tiny_dataset
from tests.problems import problem_of

WEIGHTS = TrainerOptions(class_weight="balanced")
SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Three classes, two classes, and numbers."""
    found = {}
    for name in ("three", "two", "numbers"):
        folder = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            if name == "two":
                patch.setattr(tiny_dataset, "CLASSES", ("no", "yes"))
            task = "regression" if name == "numbers" else "classification"
            found[name] = Dataset.load(tiny_dataset.write(folder, task))
    return found


class Squared(losses.Loss):
    """Keras reshapes the labels of a function, but not of a class."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.square(y_true - y_pred)


class Reshaped(losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.square(tf.reshape(y_true, tf.shape(y_pred)) - y_pred)


class Error(metrics.Metric):
    """Mean absolute error; labels and weights have `label` and `weight` dimensions."""

    def __init__(self, label: int = 2, weight: int = 2) -> None:
        super().__init__(name="error")
        self.label, self.weight = label, weight
        self.sums = self.add_variable((2,), "zeros", name="sums")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        columns = [tf.reshape(tf.cast(y, tf.float32), [-1] + [1] * (self.label - 1))]
        error = tf.abs(columns[0] - predicted)
        if sample_weight is not None:
            error *= tf.reshape(sample_weight, [-1] + [1] * (self.weight - 1))
        self.sums.assign_add(tf.stack([tf.reduce_sum(error), tf.cast(tf.size(error), tf.float32)]))

    def result(self) -> Any:
        return self.sums[0] / self.sums[1]


def one_hot(y_true: Any, y_pred: Any) -> Any:
    """Return the loss of each row and column: legal without weights."""
    return tf.square(tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), 3) - y_pred)


def one_hot_rows(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(one_hot(y_true, y_pred), -1)


def largest_label(y_true: Any, y_pred: Any) -> Any:
    """As for one-hot labels: the row with the largest label, not the class of each row."""
    return tf.cast(tf.equal(tf.argmax(y_true, -1), tf.argmax(y_pred, -1)), tf.float32)


class F1(metrics.F1Score):
    """The subclass in docs/own-model.md."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = tf.one_hot(tf.cast(y_true, tf.int32), y_pred.shape[1])
        super().update_state(labels, y_pred, sample_weight)


class F1OfOne(metrics.F1Score):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.reshape(y_true, tf.shape(y_pred)), y_pred, sample_weight)


class OneHotMetrics(keras.Model):
    """Gives its metrics what they expect."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().compute_metrics(x, tf.one_hot(tf.cast(y, tf.int32), 3), y_pred)


class LossOfRows(keras.Model):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        return losses.sparse_categorical_crossentropy(y, y_pred)


def model(
    dataset: Dataset,
    loss: Any = None,
    metric: Any = None,
    weighted: Any = None,
    columns: int = 0,
    kind: type[keras.Model] = keras.Model,
) -> keras.Model:
    columns = columns or dataset.num_classes or 1
    activation = "softmax" if columns > 1 else "sigmoid" if dataset.num_classes else None
    inputs = keras.Input((dataset.num_features,))
    found = kind(inputs, keras.layers.Dense(columns, activation)(dataset.encode(inputs)))
    default = SPARSE if columns > 1 else BINARY if dataset.num_classes else "mse"
    named = [[item] if item else None for item in (metric, weighted)]
    found.compile("adam", loss or default, metrics=named[0], weighted_metrics=named[1])
    return found


def check(dataset: Dataset, found: keras.Model, options: TrainerOptions) -> None:
    """Make the tests of a start."""
    replicas = Replicas(tf.distribute.get_strategy())
    user_model.check(found, model, dataset, 1, options)
    label_test.check_values(found, dataset, replicas, options)
    self_test.check_step(found, dataset, replicas, options)
    self_test.check_loss(found, dataset, replicas, options)


Make = Callable[[Dataset], keras.Model]
MISMATCHES: dict[str, tuple[str, Make]] = {
    **{
        f"{name} of classes": ("three", lambda it, name=name: model(it, name))
        for name in ("mse", "hinge", "kl_divergence", "poisson", "categorical_crossentropy")
    },
    "Dice": ("three", lambda it: model(it, losses.Dice())),
    "own, of all classes": ("three", lambda it: model(it, Squared())),
    "one output": ("two", lambda it: model(it, "categorical_crossentropy", columns=1)),
    "class 1 of one": ("two", lambda it: model(it, SPARSE, columns=1)),
    "classes of numbers": ("numbers", lambda it: model(it, "categorical_crossentropy")),
    **{
        f"metric {name}": ("three", lambda it, make=make: model(it, metric=make()))
        for name, make in {
            "Precision": metrics.Precision,
            "Recall": metrics.Recall,
            "AUC": metrics.AUC,
            "F1Score": lambda: metrics.F1Score(average="macro"),
            "CategoricalAccuracy": metrics.CategoricalAccuracy,
            "OneHotMeanIoU": lambda: metrics.OneHotMeanIoU(3),
            "MeanIoU": lambda: metrics.MeanIoU(3),
            "own": lambda: largest_label,
        }.items()
    },
    "accuracy of one": (
        "two",
        lambda it: model(it, metric="sparse_categorical_accuracy", columns=1),
    ),
    "weighted metric": ("three", lambda it: model(it, weighted=metrics.Precision())),
}
PAIRS: dict[str, tuple[str, str, Make]] = {
    "loss": ("numbers", "the loss", lambda it: model(it, Squared())),
    "loss of one output": ("two", "the loss", lambda it: model(it, Squared(), columns=1)),
    "metric": ("numbers", "the metric error", lambda it: model(it, metric=Error(1))),
    "function": (
        "numbers",
        "the metric lambda",
        lambda it: model(it, metric=lambda y, p: abs(y - p)),
    ),
    # Its own code does not reshape labels, unlike that of the loss.
    "of Keras": ("two", "the metric hinge", lambda it: model(it, metric="hinge", columns=1)),
    "weighted metric": (
        "two",
        "the metric error",
        lambda it: model(it, weighted=Error(1), columns=1),
    ),
    "weights": ("two", "the metric error", lambda it: model(it, weighted=Error(2, 1), columns=1)),
}


class Adding(keras.layers.Layer):
    """Adds a loss; so does a regularizer of its outputs."""

    def __init__(self) -> None:
        super().__init__(activity_regularizer="l2")

    def call(self, x: Any) -> Any:
        self.add_loss(tf.reduce_mean(tf.square(x)))
        return x


class AddingLoss(keras.Model):
    factor = 1e4

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        return loss + self.factor * tf.reduce_mean(x**2)


class AddingFarMore(AddingLoss):
    factor = 1e9


def adding(dataset: Dataset, loss: str | None, kind: type[keras.Model] = keras.Model) -> Any:
    inputs = keras.Input((dataset.num_features,))
    x = Adding()(keras.layers.Dense(4)(inputs))
    found = kind(inputs, keras.layers.Dense(3, "softmax")(x))
    found.compile("adam", loss)
    return found


LEGAL: dict[str, tuple[str, Make]] = {
    "added losses": ("three", lambda it: adding(it, SPARSE)),
    "only added losses": ("three", lambda it: adding(it, None)),
    "compute_loss": ("three", lambda it: adding(it, SPARSE, AddingLoss)),
    "compute_loss with a huge term": ("three", lambda it: adding(it, SPARSE, AddingFarMore)),
    "mse of one output": ("two", lambda it: model(it, "mse", columns=1)),
    "all kinds": ("two", lambda it: model(it, metric=metrics.AUC(), weighted=Error(), columns=1)),
    "Precision": ("two", lambda it: model(it, metric=metrics.Precision(), columns=1)),
    "F1": ("three", lambda it: model(it, metric=F1("macro"), weighted=F1("macro"))),
    "F1 of one output": ("two", lambda it: model(it, metric=F1OfOne(threshold=0.5), columns=1)),
    "top 5 of 3": ("three", lambda it: model(it, metric="sparse_top_k_categorical_accuracy")),
    "rows": ("three", lambda it: model(it, one_hot_rows, "accuracy")),
    "own metrics": (
        "three",
        lambda it: model(it, metric=metrics.CategoricalAccuracy(), kind=OneHotMetrics),
    ),
    "reshaped": ("numbers", lambda it: model(it, Reshaped(), metrics.R2Score())),
    "function": ("numbers", lambda it: model(it, lambda y, p: tf.abs(y - p), Error())),
    # The mean difference of all pairs is that of the rows.
    "bias": ("numbers", lambda it: model(it, metric=lambda y, p: y - p)),
}


# Of some, Keras itself warns before the refusal.
@pytest.mark.filterwarnings("ignore:In loss categorical_crossentropy:SyntaxWarning")
@pytest.mark.parametrize("case", MISMATCHES)
def test_what_fits_by_chance_is_refused(datasets: dict[str, Dataset], case: str) -> None:
    name, make = MISMATCHES[case]
    options = WEIGHTS if "weighted" in case else TrainerOptions()
    problem = problem_of(check, datasets[name], make(datasets[name]), options)
    assert problem.what == label_test.mismatch(datasets[name], "").what
    assert problem.received


@pytest.mark.parametrize(
    "make",
    [
        lambda it: model(it, losses.SparseCategoricalCrossentropy(reduction="none")),
        lambda it: model(it, SPARSE, kind=LossOfRows),
    ],
)
def test_a_loss_is_a_single_number(datasets: dict[str, Dataset], make: Make) -> None:
    """A step would end with an error about a loop of TensorFlow."""
    problem = problem_of(check, datasets["three"], make(datasets["three"]), TrainerOptions())
    assert problem.expected.startswith("shape ()") and "(64,)" in problem.received


@pytest.mark.parametrize("case", PAIRS)
def test_a_comparison_of_all_pairs_is_refused(datasets: dict[str, Dataset], case: str) -> None:
    name, culprit, make = PAIRS[case]
    options = WEIGHTS if "weight" in case else TrainerOptions()
    problem = problem_of(check, datasets[name], make(datasets[name]), options)
    argument = "sample_weight" if case == "weights" else "y_true"
    assert problem.what.startswith(f"{culprit} ") and argument in problem.fix


@pytest.mark.parametrize("case", LEGAL)
def test_what_fits_is_left_alone(datasets: dict[str, Dataset], case: str) -> None:
    name, make = LEGAL[case]
    options = TrainerOptions() if name == "numbers" else WEIGHTS
    check(datasets[name], make(datasets[name]), options)


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_labels_in_any_unit(datasets: dict[str, Dataset], scale: float, monkeypatch: Any) -> None:
    """Errors of small labels are no equal values."""
    dataset, rows = datasets["numbers"], label_test.first_rows

    def scaled(*arguments: Any) -> Any:
        x, y, weights = rows(*arguments)
        return x, (y * scale).astype("float32"), weights

    monkeypatch.setattr(label_test, "first_rows", scaled)
    check(dataset, model(dataset, metric=metrics.MeanSquaredError()), TrainerOptions())
    with pytest.raises(ConfigurationError):
        check(dataset, model(dataset, Squared()), TrainerOptions())


def test_weights_need_a_loss_of_each_row(datasets: dict[str, Dataset]) -> None:
    """A batch of as many rows as classes would multiply each class by the weight of a row."""
    dataset = datasets["three"]
    check(dataset, model(dataset, one_hot), TrainerOptions())
    with pytest.raises(ConfigurationError):
        check(dataset, model(dataset, one_hot), WEIGHTS)
