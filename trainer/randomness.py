"""Gives every replica its own random numbers, which are the same again after an interruption.

Keras keeps their states in SeedGenerators, as variables of the model. A checkpoint contains the
states of replica 0; the other replicas' states are derived from them. Operations without a seed
use one global generator of Keras, which is not part of a model. Here every model gets its own.
Called by `loop.py`, `training_state.py` and `user_model.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import keras
import tensorflow as tf
from keras.src.random import seed_generator as keras_seeds  # for operations without a seed

from .replicas import Replicas, parts_of

UNSEEDED = "unseeded"
_STREAMS = 1000003  # distance between the seeds of two replicas
_keras_global_generator = keras_seeds.global_seed_generator


class _Unseeded(keras.random.SeedGenerator):
    """Draws one number after the other, as the generators of layers do.

    The global generator of Keras mixes its seed with every number, so the seeds of two replicas
    would not keep their distance.
    """

    def next(self, ordered: bool = True) -> tf.Tensor:
        return super().next(ordered=True)


def adopt_unseeded(model: keras.Model, seed: int) -> None:
    """Give a model a generator for operations without a seed, and make Keras use it.

    Code outside compiled functions does not use it. If a callback on the chief did, the replicas
    would disagree on how many numbers were drawn.

    Args:
        model: The model, built in the scope of the strategy.
        seed: The training seed.
    """
    # Not the training seed itself: the user's layers may use it.
    unseeded_seed = random.Random(f"{UNSEEDED} {seed}").randrange(2**32)
    generator = _Unseeded(unseeded_seed, name=UNSEEDED)
    model._seed_generators.append(generator)
    # Not the global attribute of Keras: it is not visible to other threads, and so to several GPUs,
    # and set_random_seed and clear_session in the user's code remove it.
    keras_seeds.global_seed_generator = lambda: (
        generator if tf.inside_function() else _keras_global_generator()
    )


def states(model: keras.Model) -> Iterator[keras.Variable]:
    """Yield the state of each generator of a model: (2,) integers, a seed and a count."""
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            yield generator.state


def separate(model: keras.Model, replicas: Replicas) -> None:
    """Give every replica its own random numbers; Keras gives all replicas the same.

    Call it while all replicas have the states of replica 0: after the model is built and after a
    checkpoint is restored.
    """
    for state in states(model):
        for replica, part in zip(replicas.mine, parts_of(state), strict=True):
            seed, count = part.numpy()
            part.assign([(int(seed) + _STREAMS * replica) % 2**32, count])
