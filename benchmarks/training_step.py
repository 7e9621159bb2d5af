"""Measures milliseconds per training step: ours, model.fit, and a bare custom loop.

Each way is one new process on two cores, with batches of 256 rows of 784 columns, and no strategy.
Ours is the trainer's own path: its input, its batches, its step, in runs of about a second. The
others read the same rows from the TFRecord files of tutorials in the fastest way of tf.data:
shuffle, batch, parse whole batches, prefetch. All compute the loss and the accuracy. The processes
take turns.

    python -m benchmarks.training_step [--quick]

Prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import prepared
from benchmarks.turns import Player, Turn, cores, play, say, wait_for_turn

BATCH, ROWS, FEATURES = 256, 12_800, 784
MODELS = {"cnn": 100, "mlp": 500}  # trainer.models, and steps of a turn
TURNS = (25, 3)  # all of them, and with --quick
GOALS = {"fit": 1.0, "bare": 1.05}  # upper limits for our time relative to theirs; for the CNN
PEERS = ("bare", "fit-1", "fit-10", "fit-50")  # with their steps_per_execution


def trainer_steps(folder: Path, name: str, batch: int) -> Callable[[int], Any]:
    """Return a function that trains some steps with the trainer's code, as one replica."""
    from kfp_tfjob.features.tensorflow_import import load

    load(0)
    import keras

    from kfp_tfjob.features.records import train_slices
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.supervisor.tf_config import Topology
    from kfp_tfjob.trainer import user_model
    from kfp_tfjob.trainer.config import Config
    from kfp_tfjob.trainer.inputs import distribute, open_rows
    from kfp_tfjob.trainer.replicas import Replicas
    from kfp_tfjob.trainer.train_step import TrainSteps

    nowhere, cluster = S3Address("none"), Topology.read(os.environ)
    config = Config(nowhere, "", 1, batch, folder, folder, cluster=cluster, expected_gpus=0)
    replicas = Replicas.start(config)
    dataset, function = _dataset(folder), _model(name)
    keras.utils.set_random_seed(0)
    with replicas.strategy.scope():
        model = function(dataset)
        user_model.check(model, function, dataset, replicas.count)
    steps, opened = TrainSteps(model, replicas, batch), open_rows(dataset, "train")

    def slices() -> Iterator[np.ndarray]:
        return train_slices(len(opened), batch, 0, (0, 0), replicas.mine, replicas.count)

    size = batch // replicas.count
    batches = distribute(replicas.strategy, dataset, opened, slices, size)
    return lambda number: steps.train(batches, number)


def ours(folder: Path, name: str, steps: int) -> None:
    """Take turns with the trainer's code."""
    run = trainer_steps(folder, name, BATCH)
    play(lambda: run(steps))


def bare(folder: Path, name: str, steps: int) -> None:
    """Take turns with the shortest possible loop."""
    from kfp_tfjob.features.tensorflow_import import load

    load(0)
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    model = _model(name)(_dataset(folder))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    iterator = iter(_tf_data(folder))

    @tf.function
    def run(number: tf.Tensor) -> None:
        for _ in tf.range(number):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                predicted = model(x, training=True)
                loss = function(y, predicted)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            mean.update_state(loss)
            accuracy.update_state(y, predicted)

    def turn() -> None:
        run(tf.constant(steps))
        mean.result().numpy()

    play(turn)


def fit(folder: Path, name: str, steps: int, per_execution: int) -> None:
    """Take turns within one model.fit, epoch by epoch."""
    from kfp_tfjob.features.tensorflow_import import load

    load(0)
    import keras

    keras.utils.set_random_seed(0)
    model = _model(name)(_dataset(folder))
    model.compile(
        model.optimizer, loss=model.loss, metrics=["accuracy"], steps_per_execution=per_execution
    )

    class Turns(keras.callbacks.Callback):
        def on_epoch_begin(self, *_: Any) -> None:
            wait_for_turn()
            self.start = time.perf_counter(), time.process_time()

        def on_epoch_end(self, *_: Any) -> None:
            wall, cpu = self.start
            say(time.perf_counter() - wall, time.process_time() - cpu)

    data = _tf_data(folder)
    model.fit(data, epochs=10**6, steps_per_epoch=steps, verbose=0, callbacks=[Turns()])


def _dataset(folder: Path) -> Any:
    from kfp_tfjob.trainer.dataset import Dataset

    return Dataset.load(folder)


def _model(name: str) -> Callable[..., Any]:
    from kfp_tfjob.trainer import models

    return getattr(models, name)


def _tf_data(folder: Path) -> Any:
    import tensorflow as tf

    spec = {
        "features": tf.io.FixedLenFeature([FEATURES], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        columns = tf.io.parse_example(records, spec)
        return columns["features"], columns["label"]

    files = sorted(str(path) for path in folder.glob("tutorial/train-*.tfrecord"))
    data = tf.data.TFRecordDataset(files).shuffle(4096, seed=0).repeat()
    return data.batch(BATCH, drop_remainder=True).map(parse).prefetch(tf.data.AUTOTUNE)


def compare(folder: Path, name: str, steps: int, turns: int) -> dict[str, dict[str, float]]:
    """Let all ways take turns of some steps; return medians in milliseconds per step."""
    ways = ("ours", *PEERS)
    players = {
        way: Player(
            "training_step",
            ["--way", way, "--model", name, "--steps", str(steps), str(folder)],
            cores(2),
        )
        for way in ways
    }
    taken: dict[str, list[Turn]] = {way: [] for way in ways}
    try:
        for number in range(turns + 2):  # two warm-up turns
            for way, player in players.items():
                player.go()
                turn = player.done()
                if number >= 2:
                    taken[way].append(turn)
    finally:
        for player in players.values():
            player.end()
    per_step = 1000 / steps
    return {
        way: {
            "ms": statistics.median(turn.wall for turn in taken[way]) * per_step,
            "cpu_ms": statistics.median(turn.cpu for turn in taken[way]) * per_step,
            "best_ms": min(turn.wall for turn in taken[way]) * per_step,
            # Compared with ours in the same round: a slow machine slows both.
            "ours": statistics.median(
                mine.wall / turn.wall for mine, turn in zip(taken["ours"], taken[way], strict=True)
            ),
        }
        for way in ways
    }


def report(name: str, found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Print a table; return our time relative to the best fit and to the bare loop."""
    print(f"\n## {name}: ms/step, batch {BATCH}, two cores, one process\n")
    print("| | median | best | CPU | ours / it |")
    print("|---|---|---|---|---|")
    for way, row in found.items():
        cells = " | ".join(f"{row[key]:.2f}" for key in ("ms", "best_ms", "cpu_ms", "ours"))
        print(f"| {way} | {cells} |")
    best = min((way for way in found if way.startswith("fit")), key=lambda way: found[way]["ms"])
    ratios = {"fit": found[best]["ours"], "bare": found["bare"]["ours"]}
    for peer, ratio in ratios.items():
        goal = GOALS[peer]
        verdict = "" if name != "cnn" else "reached " if ratio <= goal else "MISSED "
        limit = f" (goal ≤ {goal:g})" if name == "cnn" else ""
        print(f"{verdict}{name}: {ratio:.3f} times {best if peer == 'fit' else peer}{limit}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few turns, as a trial")
    parser.add_argument("--way", help="run one of the ways")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--steps", type=int)
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    if given.way:
        arguments = given.folder, given.model, given.steps
        kind, _, number = given.way.partition("-")
        if kind == "fit":
            fit(*arguments, int(number))
        else:
            {"ours": ours, "bare": bare}[kind](*arguments)
    result = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared.write(Path(temporary) / "data", ROWS, FEATURES)
        prepared.write_tutorial(folder, "train")
        for name, steps in MODELS.items():
            found = compare(folder, name, steps // 10 if given.quick else steps, TURNS[given.quick])
            result[name] = {"ways": found, "ratios": report(name, found)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
