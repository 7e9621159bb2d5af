"""Random numbers: different on every replica, and the same again after an interruption.

Keras keeps them in the states of SeedGenerators, which are variables of the model: a checkpoint has
those of replica 0, and those of the others follow from them. Operations without a seed use one
global generator of Keras, which no model contains; here every model gets its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import keras
import tensorflow as tf
from keras.src.random import seed_generator as of_keras  # operations without a seed ask it for one

from kfp_tfjob.trainer.replicas import Replicas, parts_of

UNSEEDED = "unseeded"
_STREAMS = 1000003  # distance between the seeds of two replicas
_outside_functions = of_keras.global_seed_generator


class _Unseeded(keras.random.SeedGenerator):
    """Draws one number after the other, as the generators of layers do.

    Keras' own mixes the seed with every number, and the seeds of two replicas would not stay apart
    by the same amount.
    """

    def next(self, ordered: bool = True) -> tf.Tensor:
        return super().next(ordered=True)


def adopt_unseeded(model: keras.Model, seed: int) -> None:
    """Give a model a generator for all that names no seed, and let Keras use it.

    Numbers that are drawn outside of compiled functions, by a callback on the chief for instance,
    do not come from it: the replicas would no longer agree on how many were drawn.

    Args:
        model: Built, in the scope of the strategy.
        seed: Of the training.
    """
    # Another one than that of the training, which the user's layers may have too.
    own = random.Random(f"{UNSEEDED} {seed}").randrange(2**32)
    generator = _Unseeded(own, name=UNSEEDED)
    model._seed_generators.append(generator)
    # Not Keras' global attribute: other threads, and so several GPUs, do not see it, and
    # set_random_seed and clear_session in the user's code remove it.
    of_keras.global_seed_generator = lambda: (
        generator if tf.inside_function() else _outside_functions()
    )


def states(model: keras.Model) -> Iterator[keras.Variable]:
    """Yield the states of all generators of a model, (2,) integers: a seed and a count."""
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            yield generator.state


def separate(model: keras.Model, replicas: Replicas) -> None:
    """Give every replica random numbers of its own; Keras gives all of them the same.

    It is called when the states of all replicas are those of replica 0: after the model was built
    and after a checkpoint was restored.
    """
    for state in states(model):
        for replica, part in zip(replicas.mine, parts_of(state), strict=True):
            seed, count = part.numpy()
            part.assign([(int(seed) + _STREAMS * replica) % 2**32, count])
