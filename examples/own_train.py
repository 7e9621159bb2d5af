"""Your own program: plain TensorFlow on any number of replicas, without code of this project.

    kfp-tfjob run --data FILE.csv --label COLUMN --model examples/own_train.py:main \
        --set 'train_options.command=["python3", "$(JOB_DIR)/code/own_train.py"]'

It reads the Parquet files in DATA_DIR, and writes checkpoints and a SavedModel to OUTPUT_DIR.
docs/replica.md lists the other variables, and docs/dataset.md describes the files. The image needs
TensorFlow, Keras 3 and pyarrow, as in the trainer image.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

DATA, OUTPUT = Path(os.environ["DATA_DIR"]), Path(os.environ["OUTPUT_DIR"])
EPOCHS, BATCH = int(os.environ["EPOCHS"]), int(os.environ["BATCH_SIZE"])
SCHEMA = json.loads((DATA / "schema.json").read_text())
NAMES = [feature["name"] for feature in SCHEMA["features"]]
CLASSES = SCHEMA["label"]["classes"]
STEPS = max(1, SCHEMA["splits"]["train"]["rows"] // BATCH)
CHECKPOINTS = OUTPUT / "checkpoints"
SAVE_SECONDS = json.loads(os.environ["TRAIN_OPTIONS"]).get("checkpoint_seconds", 60)
STOPPED, PEER_LOST = 143, 138
PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def build_model(units: int = 64) -> keras.Model:
    """Return a classifier that takes raw rows and normalizes them."""
    columns = json.loads((DATA / "statistics.json").read_text())["features"]
    deviations = np.array([columns[name]["std"] or 1 for name in NAMES])
    return keras.Sequential(
        [
            keras.Input((len(NAMES),), name="features"),
            keras.layers.Normalization(
                mean=[columns[name]["mean"] for name in NAMES], variance=deviations**2
            ),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(len(CLASSES), activation="softmax"),
        ]
    )


def rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Return this process's share of the training rows, repeated without end."""
    table = pq.read_table(DATA / "train")
    features = np.stack([table[name].to_numpy() for name in NAMES], axis=1, dtype=np.float32)
    classes = pc.index_in(table[SCHEMA["label"]["name"]], pa.array(CLASSES)).to_numpy()
    data = tf.data.Dataset.from_tensor_slices((features, classes))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    size = context.get_per_replica_batch_size(BATCH)
    data = data.shuffle(10_000).repeat().batch(size, drop_remainder=True)
    return data.prefetch(tf.data.AUTOTUNE)


def restore(checkpoint: tf.train.Checkpoint, strategy: tf.distribute.Strategy, chief: bool) -> int:
    """Resume from the newest checkpoint, which only the chief has, and return its step."""
    folders = CHECKPOINTS.iterdir() if CHECKPOINTS.exists() else ()
    steps = [int(folder.name) for folder in folders if folder.name.isdecimal()]
    step = max(steps, default=0) if chief else 0
    if step:
        checkpoint.read(str(CHECKPOINTS / str(step) / "state")).expect_partial()
    for variable in [*checkpoint.model.variables, *checkpoint.optimizer.variables]:
        variable.assign(of_chief(strategy, variable.numpy()))
    return int(of_chief(strategy, step))


def of_chief(strategy: tf.distribute.Strategy, value: Any) -> tf.Tensor:
    """Return the chief's value on every replica: its first device adds it, the others add zeros."""

    def mine() -> tf.Tensor:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        return tf.constant(value) * tf.cast(first, tf.constant(value).dtype)

    return strategy.reduce("SUM", strategy.run(mine), axis=None)


def save(checkpoint: tf.train.Checkpoint, step: int) -> None:
    """Write a checkpoint; one rename makes it visible, and it is in S3 seconds later."""
    partial = CHECKPOINTS / f".{step}.tmp"
    checkpoint.write(str(partial / "state"))
    partial.rename(CHECKPOINTS / str(step))
    folders = [folder for folder in CHECKPOINTS.iterdir() if folder.name.isdecimal()]
    for folder in sorted(folders, key=lambda folder: int(folder.name))[:-3]:
        shutil.rmtree(folder)


def main() -> None:
    """Train as one replica."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # Not earlier: TensorFlow takes over the signal when the strategy is built, and ignores it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(STOPPED))
    chief = (strategy.cluster_resolver.task_type or "chief") == "chief"
    with strategy.scope():
        model = build_model(**json.loads(os.environ["HYPERPARAMETERS"]))
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        per_row = keras.losses.SparseCategoricalCrossentropy(reduction="none")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    first = restore(checkpoint, strategy, chief) // STEPS
    batches = iter(strategy.distribute_datasets_from_function(rows))

    def step(features: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = per_row(classes, model(features, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(features: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=(features, classes)), axis=None)

    saved = time.monotonic()
    for epoch in range(first, EPOCHS):
        losses = [float(train_step(*next(batches))) for _ in range(STEPS)]
        print(f"epoch {epoch + 1}/{EPOCHS} loss {np.mean(losses):.4f}", flush=True)
        if chief and (time.monotonic() - saved >= SAVE_SECONDS or epoch + 1 == EPOCHS):
            save(checkpoint, (epoch + 1) * STEPS)
            saved = time.monotonic()
    if chief:
        model.export(OUTPUT / "model", verbose=False)


if __name__ == "__main__":
    try:
        main()
    except PEER_ERRORS as error:
        # With code 1 the run would fail for good; with this one a new attempt continues.
        print(f"another replica was lost: {error}", flush=True)
        os._exit(PEER_LOST)
