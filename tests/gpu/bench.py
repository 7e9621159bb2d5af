"""Measures the trainer's own step with a large dense or convolutional model, as one process.

    python -m tests.gpu.bench dense|conv [--gpus N] [--size N] [--batch N] [--steps N]

Prints one JSON object. The input is narrow and made on the host, so that only the products count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

LAYERS = 4
_IMAGE = 56  # pixels of height and width, as in the first stage of a ResNet
_CLASSES, _INPUTS = 10, 16
_TURNS = 5  # of --steps each, after one that compiles


def flops(kind: str, size: int, batch: int) -> float:
    """Return the floating-point operations of one training step.

    A product costs two operations for each multiplication, once forward and twice backward: for the
    input's gradient and for the weights'. The first and the last layer are small and do not count.

    Args:
        kind: dense or conv.
        size: Units, or channels, of each of LAYERS layers.
        batch: Rows of a step.
    """
    products = size * size * (9 * _IMAGE * _IMAGE if kind == "conv" else 1)
    return 6.0 * batch * products * LAYERS


def model(kind: str, size: int) -> Any:
    """Return a compiled model of LAYERS equal layers between two small ones."""
    import keras

    layers = keras.layers
    if kind == "conv":
        inputs = keras.Input((_IMAGE, _IMAGE, 1))
        hidden = layers.Conv2D(size, 1)(inputs)
        for _ in range(LAYERS):
            hidden = layers.Conv2D(size, 3, padding="same", activation="relu")(hidden)
        hidden = layers.GlobalAveragePooling2D()(hidden)
    else:
        inputs = keras.Input((_INPUTS,))
        hidden = layers.Dense(size)(inputs)
        for _ in range(LAYERS):
            hidden = layers.Dense(size, activation="relu")(hidden)
    made = keras.Model(inputs, layers.Dense(_CLASSES, dtype="float32")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(1e-6), loss)
    return made


def measure(kind: str, gpus: int, size: int, batch: int, steps: int, precision: str) -> dict:
    """Return milliseconds per step, TFLOPS per replica, and the peak memory that TensorFlow counts.

    Args:
        kind: dense or conv.
        gpus: Number of GPUs, all in this process; 0 measures the CPU.
        size: Units or channels.
        batch: Rows of a step, over all replicas.
        steps: Steps of a turn.
        precision: A policy of Keras, such as mixed_bfloat16.
    """
    from kfp_tfjob.features.tensorflow_import import load

    load(gpus)
    import keras
    import numpy as np
    import tensorflow as tf

    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.trainer.config import Config
    from kfp_tfjob.trainer.replicas import Replicas
    from kfp_tfjob.trainer.train_step import TrainSteps

    folder = Path()
    config = Config(S3Address("none"), "", 1, batch, folder, folder, expected_gpus=gpus)
    replicas = Replicas.start(config)
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy(precision)
    with replicas.strategy.scope():
        trained = model(kind, size)
        trained.optimizer.build(trained.trainable_variables)
    rows = batch // replicas.count
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, *trained.input_shape[1:])).astype(np.float32)
    y = random.integers(0, _CLASSES, rows)

    def pipeline(_: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((x, y, ())).repeat().prefetch(2)

    batches = iter(replicas.strategy.distribute_datasets_from_function(pipeline))
    training = TrainSteps(trained, replicas, batch)
    training.train(batches, steps)
    seconds = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        training.train(batches, steps)  # returns the loss, so it waits for the last step
        seconds.append((time.perf_counter() - start) / steps)
    step = statistics.median(seconds)
    memory = [tf.config.experimental.get_memory_info(f"GPU:{at}")["peak"] for at in range(gpus)]
    return {
        "kind": kind,
        "ms": step * 1000,
        "tflops": flops(kind, size, batch) / replicas.count / step / 1e12,
        "replicas": replicas.count,
        "memory_mib": max(memory, default=0) / (1 << 20),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("kind", choices=("dense", "conv"))
    add("--gpus", type=int, default=0)
    add("--size", type=int, default=64)
    add("--batch", type=int, default=64)
    add("--steps", type=int, default=2)
    add("--precision", default="mixed_bfloat16")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
