"""What is known of an export before training: Python in the graph, and an answer elsewhere."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import Dense, Lambda

from kfp_tfjob.trainer import export_test
from kfp_tfjob.trainer.dataset import Dataset
from tests.local import tiny_dataset
from tests.problems import problem_of

FEATURES = len(tiny_dataset.FEATURES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("classes")))


def model(*layers: Any) -> keras.Model:
    found = keras.Sequential([keras.Input((FEATURES,)), *layers, Dense(3, "softmax")])
    found.compile("adam", "sparse_categorical_crossentropy")
    return found


def numpy_tanh(x: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32), x.shape)


def python_tanh(x: Any) -> Any:
    return tf.ensure_shape(tf.py_function(tf.tanh, [x], tf.float32), x.shape)


def in_a_branch(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: numpy_tanh(x), lambda: x)


def in_a_loop(x: Any) -> Any:
    return tf.while_loop(lambda at, _: at < 2, lambda at, it: (at + 1, python_tanh(it)), (0, x))[1]


def in_a_map(x: Any) -> Any:
    return tf.map_fn(numpy_tanh, x)


@tf.function
def in_a_function(x: Any) -> Any:
    return tf.function(in_a_branch)(x)


@pytest.mark.parametrize(
    "function", [numpy_tanh, python_tanh, in_a_branch, in_a_loop, in_a_map, in_a_function]
)
def test_python_in_the_graph_is_found(dataset: Dataset, function: Callable[..., Any]) -> None:
    layer = Lambda(function, output_shape=(FEATURES,))
    problem = problem_of(export_test.check_graph, model(layer), dataset, False)
    assert any(name in problem.received for name in export_test._PYTHON)
    assert "py_function" in problem.fix


class Augmented(keras.layers.Layer):
    """Calls Python when it is trained only."""

    def call(self, x: Any, training: bool = False) -> Any:
        return numpy_tanh(x) if training else x


class Pairs(keras.layers.Layer):
    """Takes even numbers of rows, as those of a step may be."""

    def call(self, x: Any) -> Any:
        tf.debugging.assert_equal(tf.shape(x)[0] % 2, 0, "rows in pairs")
        return x


def test_python_in_training_only_is_left_alone(dataset: Dataset) -> None:
    export_test.check_graph(model(Augmented()), dataset, False)


def test_an_export_that_cannot_answer_one_row_is_refused(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_test, "_SECONDS", 600.0)  # a busy machine takes two minutes
    problem = problem_of(export_test.check_answer, model(Pairs()), dataset, False)
    assert "rows in pairs" in problem.received


@pytest.mark.slow
def test_an_export_that_answers_is_left_alone(dataset: Dataset) -> None:
    export_test.check_answer(model(Augmented()), dataset, False)


def test_a_trial_that_takes_too_long_is_a_warning(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export_test, "_SECONDS", 0.0)
    export_test.check_answer(model(Pairs()), dataset, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("layer", "tried"),
    [
        (lambda: Dense(4, "relu"), False),
        (lambda: keras.layers.Normalization(mean=0.0, variance=1.0), False),
        (lambda: keras.layers.Rescaling(2.0), False),
        (lambda: Dense(4, in_a_map), True),
        (lambda: Lambda(lambda x: x), True),
        (Augmented, True),
        (lambda: keras.Sequential([Augmented()]), True),
    ],
)
def test_only_models_with_own_code_are_tried(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, layer: Callable[[], Any], tried: bool
) -> None:
    """A process that loads TensorFlow takes seconds."""
    calls = []
    done = export_test.subprocess.CompletedProcess([], 0, "")
    monkeypatch.setattr(export_test, "_other_process", lambda *_: calls.append(1) or done)
    export_test.check_answer(model(layer()), dataset, False)
    assert bool(calls) == tried
