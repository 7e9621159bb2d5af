"""Your own program: asynchronous training with parameter servers.

    kfp-tfjob run --data FILE.csv --label COLUMN --workers 2 \
        --model examples/parameter_server.py:main \
        --set 'train_options.command=["python3", "$(JOB_DIR)/code/parameter_server.py"]' \
        --set pod.ps.replicas=1 --set pod.evaluator.replicas=1

Parameter servers hold the variables. Workers compute gradients from their own rows and do not wait
for each other. The chief coordinates them and writes checkpoints, and the evaluator scores each
checkpoint. `model.fit` of Keras 3 cannot do this; a ClusterCoordinator can.

The chief and the evaluator read the Parquet files in DATA_DIR, which docs/dataset.md describes. The
chief sends the rows to the workers as part of a graph, whose limit is 2 GB. The image needs
TensorFlow, Keras 3 and pyarrow; the evaluator also needs this project. The trainer image has them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

OUTPUT = Path(os.environ["OUTPUT_DIR"])
CHECKPOINTS = OUTPUT / "checkpoints"
EPOCHS, BATCH = int(os.environ["EPOCHS"]), int(os.environ["BATCH_SIZE"])
# Otherwise each parameter server would write its variables to its own disk.
HERE = tf.train.CheckpointOptions(experimental_io_device="/job:chief/replica:0/task:0/device:CPU:0")

PEER_LOST = 138
PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


class Data:
    """The dataset in DATA_DIR, on the chief and the evaluator."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["DATA_DIR"])
        schema = json.loads((self.folder / "schema.json").read_text())
        statistics = json.loads((self.folder / "statistics.json").read_text())
        self.names = [feature["name"] for feature in schema["features"]]
        columns = [statistics["features"][name] for name in self.names]
        self.mean = np.array([column["mean"] for column in columns])
        self.variance = np.array([column["std"] or 1 for column in columns]) ** 2
        self.label, self.classes = schema["label"]["name"], schema["label"]["classes"]
        self.rows = schema["splits"]["train"]["rows"]

    def batches(self, split: str) -> tf.data.Dataset:
        """Return features (batch, columns) and classes (batch,), each row once."""
        table = pq.read_table(self.folder / split)
        columns = [table[name].to_numpy() for name in self.names]
        features = np.stack(columns, axis=1, dtype=np.float32)
        classes = pc.index_in(table[self.label], pa.array(self.classes)).to_numpy()
        data = tf.data.Dataset.from_tensor_slices((features, classes))
        if split == "train":
            # Every worker gets all rows, in its own order.
            data = data.shuffle(10_000).repeat()
        return data.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def build_model(data: Data, units: int = 64) -> keras.Model:
    """Return a classifier that takes raw rows and normalizes them."""
    return keras.Sequential(
        [
            keras.Input((len(data.mean),), name="features"),
            keras.layers.Normalization(mean=data.mean, variance=data.variance),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(len(data.classes), activation="softmax"),
        ]
    )


def coordinate(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Run the chief."""
    data, arguments = Data(), json.loads(os.environ["HYPERPARAMETERS"])
    steps = max(1, data.rows // BATCH)
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_model(data, **arguments)
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        loss_function = keras.losses.SparseCategoricalCrossentropy()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    first = restore(checkpoint) // steps

    @tf.function
    def train_step(batches: tf.data.Iterator) -> tf.Tensor:
        def step(features: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_function(classes, model(features, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(step, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(lambda: data.batches("train")))
    for epoch in range(first, EPOCHS):
        results = [coordinator.schedule(train_step, args=(batches,)) for _ in range(steps)]
        coordinator.join()
        loss = np.mean([float(result.fetch()) for result in results])
        print(f"epoch {epoch + 1}/{EPOCHS} loss {loss:.4f}", flush=True)
        save(checkpoint, (epoch + 1) * steps)
    exported = build_model(data, **arguments)
    exported.set_weights(model.get_weights())
    exported.export(OUTPUT / "model", verbose=False)


def restore(checkpoint: tf.train.Checkpoint) -> int:
    """Resume from the newest checkpoint and return its step."""
    folders = CHECKPOINTS.iterdir() if CHECKPOINTS.exists() else ()
    step = max((int(folder.name) for folder in folders if folder.name.isdecimal()), default=0)
    if step:
        checkpoint.read(str(CHECKPOINTS / str(step) / "state"), options=HERE).expect_partial()
    return step


def save(checkpoint: tf.train.Checkpoint, step: int) -> None:
    """Write a checkpoint; one rename makes it visible, and it is in S3 seconds later."""
    partial = CHECKPOINTS / f".{step}.tmp"
    checkpoint.write(str(partial / "state"), options=HERE)
    partial.rename(CHECKPOINTS / str(step))
    folders = [folder for folder in CHECKPOINTS.iterdir() if folder.name.isdecimal()]
    for folder in sorted(folders, key=lambda folder: int(folder.name))[:-3]:
        shutil.rmtree(folder)


def evaluate() -> None:
    """Run the evaluator: score every checkpoint in the store, until the job ends."""
    from kfp_tfjob.common.errors import StepError
    from kfp_tfjob.storage.address import S3Address
    from kfp_tfjob.storage.store import Store
    from kfp_tfjob.uploader import pull

    data = Data()
    model = build_model(data, **json.loads(os.environ["HYPERPARAMETERS"]))
    model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    stored = S3Address.parse(os.environ["RUN_URI"]) / "output" / "checkpoints"
    store, seen = Store(), 0
    while True:
        step = seen
        with tempfile.TemporaryDirectory() as folder:
            try:
                if (newest := max(store.numbers(stored), default=0)) > seen:
                    pull(store, stored / str(newest), Path(folder))
                    step = newest
            except StepError as error:
                # It is incomplete, already deleted, or the store is unreachable.
                print(f"not scored: {error}", flush=True)
            if step > seen:
                tf.train.Checkpoint(model=model).read(f"{folder}/state").expect_partial()
                scores = model.evaluate(data.batches("validation"), return_dict=True, verbose=0)
                print(f"step {step} {scores}", flush=True)
                seen = step
        time.sleep(1)


def main() -> None:
    """Run the role that TF_CONFIG names."""
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index, replicas = config["task"]["type"], config["task"]["index"], config["cluster"]
    # The evaluator serves no other replica; a cluster that includes it would never finish its wait.
    replicas.pop("evaluator", None)
    cluster = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(replicas), task_type=kind, task_id=index, rpc_layer="grpc"
    )
    if kind == "chief":
        coordinate(cluster)
    elif kind == "evaluator":
        evaluate()
    else:
        # It ends with the job, after the chief.
        tf.distribute.Server(cluster.cluster_spec(), kind, index, protocol="grpc").join()


if __name__ == "__main__":
    try:
        main()
    except PEER_ERRORS as error:
        # With code 1 the run would fail for good; with this one a new attempt continues.
        print(f"a parameter server was lost: {error}", flush=True)
        os._exit(PEER_LOST)
