"""Synchronizes BatchNormalization over all replicas, or rejects it with the reason.

Keras does not synchronize the statistics of parts of a batch (`micro_batches`), so replicas would
normalise with different numbers. Nor does it with a mask: weight_divergence.py finds that after the
first step. Called by `user_model.py`.
"""

from __future__ import annotations

import logging

import keras

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.options.train import TrainerOptions

log = logging.getLogger(__name__)

_LAYERS_IN_MESSAGE = 3  # an application of Keras has 50 such layers


def synchronize(model: keras.Model, replicas: int, options: TrainerOptions) -> None:
    """Make the layers of a model compute their statistics over all replicas, if the options do."""
    layers = [layer for layer in _trained(model) if not layer.synchronized]
    if not layers or not options.synchronizes(replicas):
        return
    for layer in layers:
        layer.synchronized = True
    log.info(
        "BatchNormalization computes its statistics over all %d replicas in the layers %s",
        replicas,
        listed((layer.name for layer in layers), _LAYERS_IN_MESSAGE),
    )


def problems(model: keras.Model, replicas: int, options: TrainerOptions) -> list[Problem]:
    """Return the reasons why the BatchNormalization layers would compute wrong statistics.

    Args:
        model: The model, built or not.
        replicas: Number of replicas of the job.
        options: The training options.
    """
    layers = _trained(model)
    names = f"layers {listed((layer.name for layer in layers), _LAYERS_IN_MESSAGE)}"
    problems = []
    if layers and options.micro_batches > 1:
        problems.append(
            Problem(
                "BatchNormalization would use the statistics of only part of the batch",
                received=f"{names} with micro_batches={options.micro_batches}",
                expected="no micro_batches, or a normalization within each row",
                fix="remove micro_batches, or use LayerNormalization or GroupNormalization",
                name="batch-normalization",
            )
        )
    unsynchronized = [layer.name for layer in layers if not layer.synchronized]
    if unsynchronized and replicas > 1:
        problems.append(
            Problem(
                "BatchNormalization would use different statistics on every replica",
                received=f"layers {listed(unsynchronized, _LAYERS_IN_MESSAGE)} with"
                f" synchronized=False, {replicas} replicas",
                expected="keras.layers.BatchNormalization(synchronized=True)",
                fix="remove sync_batch_norm from train_options, add synchronized=True to the"
                " layers, or train with one replica",
                name="batch-normalization",
            )
        )
    elif layers and replicas > 1 and options.jit_compile:
        problems.append(
            Problem(
                "XLA cannot compile communication between replicas",
                received=f"{names}, synchronized, with jit_compile and {replicas} replicas",
                expected="no jit_compile, or a normalization within each row",
                fix="remove jit_compile, or use LayerNormalization or GroupNormalization",
                name="batch-normalization",
            )
        )
    return problems


def _trained(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return the trainable BatchNormalization layers; frozen ones use their stored statistics."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
