"""Random numbers of a training, through checkpoints and evaluations; weights that drift."""

import json
from typing import Any

import keras
import pytest
import tensorflow as tf

from kfp_tfjob.trainer import randomness, untracked_state
from tests.local.trainer_jobs import STEPS, Start

# All that draws random numbers; one layer draws in evaluations too.
STOPPED = """
import os, signal
import keras

class Noise(keras.layers.Layer):
    def call(self, x):
        return x + 0.1 * keras.random.normal(keras.ops.shape(x))

class OwnNoise(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        noise = keras.random.uniform(keras.ops.shape(x), 0.9, 1.1, seed=self.seed_generator)
        return x * noise if training else x

def build_model(dataset):
    kinds = keras.layers
    model = keras.Sequential([
        keras.Input((dataset.num_features,)),
        kinds.Normalization(mean=dataset.mean, variance=dataset.std**2),
        Noise(),
        OwnNoise(),
        kinds.Dense(48, activation="relu"),
        kinds.Dropout(0.1),
        kinds.GaussianNoise(0.1),
        kinds.GaussianDropout(0.1),
        kinds.AlphaDropout(0.1),
        kinds.Reshape((4, 4, 3)),
        kinds.RandomFlip(),
        kinds.RandomRotation(0.1),
        kinds.Reshape((16, 3)),
        kinds.SpatialDropout1D(0.1),
        kinds.Flatten(),
        kinds.Lambda(lambda x: x * keras.random.uniform((48,), 0.9, 1.1)),
        kinds.Dense(dataset.num_classes, activation="softmax"),
    ])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model

class Stop(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        if os.environ["ATTEMPT"] == "1" and "STOP" in os.environ:
            os.kill(os.getpid(), signal.SIGTERM)

def callbacks(dataset):
    return [Stop()]
"""
DRIFTING = """
import keras

class Center(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], trainable=False, name="mean")
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, aggregation="mean", name="seen"
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1.0)
            mean = keras.ops.mean(x, axis=0)
            self.mean.assign(keras.ops.where(self.seen >= FROM, mean, 0.0 * self.mean))
        return x - self.mean

def build_model(dataset):
    model = keras.Sequential([
        keras.Input((dataset.num_features,)),
        Center(name="center"),
        keras.layers.Dense(dataset.num_classes, activation="softmax"),
    ])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
"""


def _draws(model: Any) -> list[float]:
    draw = tf.function(lambda: model(tf.zeros((1, 3)), training=True))
    return [float(draw()[0, 0]) for _ in range(3)]


def _model(seed: int) -> Any:
    layer = keras.layers.Lambda(lambda x: x + keras.random.normal((3,)))
    model = keras.Sequential([keras.Input((3,)), layer])
    randomness.adopt_unseeded(model, seed)
    return model


def test_what_names_no_seed_draws_from_the_model() -> None:
    first = _draws(_model(1))
    assert len(set(first)) == 3
    model = _model(1)
    keras.utils.set_random_seed(5)  # by a user, who means well
    keras.utils.clear_session()
    keras.random.normal((3,))  # by a callback: the other replicas know nothing of it
    assert _draws(model) == first
    (state,) = randomness.states(model)
    assert any(state is item for item in model.variables)
    state.assign([state.numpy()[0], 0])
    assert _draws(model) == first != _draws(_model(2))


def test_what_no_checkpoint_has_is_named() -> None:
    weight = tf.Variable(0.5, name="annealing")
    seeds = keras.random.SeedGenerator(1, name="own_seeds")

    def said(function: Any) -> list[str]:
        layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Lambda(function)]
        model = keras.Sequential(layers)
        model.compile("adam", "mse", metrics=["mae"])
        randomness.adopt_unseeded(model, 1)
        step = tf.function(lambda: model(tf.zeros((1, 3)), training=True))
        return untracked_state.warnings(step.get_concrete_function(), model)

    assert said(lambda x: x + keras.random.normal((3,))) == []
    (words,) = said(lambda x: x * weight + keras.random.normal((3,), seed=seeds))
    assert "annealing, own_seeds/seed_generator_state" in words
    (words,) = said(lambda x: x + tf.random.normal((3,)) + tf.random.uniform((3,)))
    assert "tf.random (RandomStandardNormal, RandomUniform)" in words


@pytest.mark.slow
def test_an_evaluation_that_is_done_again_draws_the_same(jobs: Start) -> None:
    """It is stopped within the evaluation of the first epoch, before which nothing was saved."""
    options = json.dumps({"checkpoint_seconds": 3600})
    undisturbed = jobs("undisturbed", code=STOPPED, TRAIN_OPTIONS=options)
    assert undisturbed.end() == [0], undisturbed.log()
    job = jobs("stopped", code=STOPPED, TRAIN_OPTIONS=options, STOP="1")
    assert job.end() == [143], job.log()
    assert job.checkpoint() == STEPS
    last = jobs("stopped", folder=job.folder, code=STOPPED, TRAIN_OPTIONS=options, ATTEMPT="2")
    assert last.end() == [0], last.log()
    assert f"step {STEPS}" in last.log()
    assert last.final["trained_weights_sha256"] == undisturbed.final["trained_weights_sha256"]
    assert [line["metrics"] for line in last.events("epoch")] == [
        line["metrics"] for line in undisturbed.events("epoch")
    ]


@pytest.mark.slow
def test_a_weight_that_drifts_ends_every_replica_with_2_after_the_first_step(jobs: Start) -> None:
    job = jobs("drifting", 2, code=DRIFTING.replace("FROM", "1"), EPOCHS="1000")
    assert job.end() == [2, 2], job.log()
    for replica in range(2):
        assert "sequential/center/mean." in job.words(replica)
    assert job.events("progress") == []
    assert job.checkpoint() == 0


@pytest.mark.slow
def test_a_weight_that_drifts_later_is_in_no_checkpoint(jobs: Start) -> None:
    code = DRIFTING.replace("FROM", str(2 * STEPS))
    options = json.dumps({"checkpoint_seconds": 0.01})
    job = jobs("later", 2, code=code, EPOCHS="1000", TRAIN_OPTIONS=options)
    assert job.end() == [2, 2], job.log()
    for replica in range(2):
        assert "sequential/center/mean." in job.words(replica)
    assert 0 < job.checkpoint() < 2 * STEPS
