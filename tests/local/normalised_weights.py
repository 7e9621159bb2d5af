"""Trains a network with BatchNormalization for ten steps, without options, and writes its weights.

`python normalised_weights.py DATASET NETWORK FOLDER` writes them to `alone.npz` and, with the rows
of each batch in reverse, `reversed.npz`; as one of several processes, by TF_CONFIG, or with
LOGICAL=1 on two CPUs of this process, as `together.npz`.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kfp_tfjob.features.records import train_slices
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.trainer import user_model
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.inputs import distribute, open_rows
from kfp_tfjob.trainer.replicas import Replicas
from kfp_tfjob.trainer.train_step import TrainSteps
from kfp_tfjob.trainer.weight_divergence import compare_weights
from tests.local.step_rows import (
    BATCH,
    SEED,
    configured,
    keras,
    layers,
    load_dataset,
    logical_replicas,
)

STEPS = 10
OPTIONS = TrainerOptions()


def three(dataset: Dataset) -> keras.Model:
    """Return a small network with three BatchNormalization layers."""
    inputs = keras.Input((dataset.num_features,))
    x = layers.Normalization(mean=dataset.mean, variance=dataset.std**2)(inputs)
    for units in (32, 16, 8):
        x = layers.Dense(units, activation="relu")(layers.BatchNormalization(momentum=0.9)(x))
    return _compiled(keras.Model(inputs, layers.Dense(dataset.num_classes)(x)), 0.1, logits=True)


def mobile_net(dataset: Dataset) -> keras.Model:
    """Return the network of keras.applications, with its 52 BatchNormalization layers."""
    network = keras.applications.MobileNetV2(
        input_shape=dataset.input_shape, weights=None, classes=dataset.num_classes
    )
    inputs = keras.Input(dataset.input_shape)
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    return _compiled(keras.Model(inputs, network(x)), 0.01, logits=False)


def _compiled(model: keras.Model, rate: float, logits: bool) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def trained(
    network: str, dataset: Dataset, replicas: Replicas, turn: bool = False
) -> list[np.ndarray]:
    """Train as `python -m kfp_tfjob.trainer` does; return all weights.

    Args:
        network: The name of a function of this module.
        dataset: The rows.
        replicas: The replicas of the job.
        turn: Whether to reverse the rows of each replica's part of a batch.
    """
    keras.utils.set_random_seed(SEED)
    build = globals()[network]
    with replicas.strategy.scope():
        model = build(dataset)
        user_model.check(model, build, dataset, replicas.count, OPTIONS)
    opened = open_rows(dataset, "train")

    def slices() -> Iterator[np.ndarray]:
        for rows in train_slices(len(opened), BATCH, SEED, (0, 0), replicas.mine, replicas.count):
            yield rows[::-1] if turn else rows

    batches = distribute(replicas.strategy, dataset, opened, slices, BATCH // replicas.count)
    steps = TrainSteps(model, replicas, BATCH)
    steps.train(batches, STEPS)
    compare_weights(replicas, model.weights)
    return [weight.numpy() for weight in model.weights]


def main() -> None:
    network, folder = sys.argv[2], Path(sys.argv[3])
    replicas = Replicas.start(configured())
    dataset = load_dataset(Path(sys.argv[1]))
    if replicas.count > 1:
        weights = trained(network, dataset, replicas)
        if replicas.chief:
            np.savez(folder / "together.npz", *weights)
    else:
        np.savez(folder / "alone.npz", *trained(network, dataset, replicas))
        np.savez(folder / "reversed.npz", *trained(network, dataset, replicas, turn=True))
        if os.environ.get("LOGICAL"):
            np.savez(folder / "together.npz", *trained(network, dataset, logical_replicas()))
    replicas.part()
    os._exit(0)


if __name__ == "__main__":
    main()
