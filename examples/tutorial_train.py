"""Your own program, in the shape of TensorFlow's tutorials: a strategy, compile, fit, export.

    kfp-tfjob run --data FILE.csv --label COLUMN --model examples/tutorial_train.py:main \
        --set 'train_options.command=["python3", "$(JOB_DIR)/code/tutorial_train.py"]'

It reads the Parquet files in DATA_DIR, which docs/dataset.md describes. The image needs TensorFlow
and pyarrow, as in the trainer image. On several replicas, the supervisor gives it Keras 2, because
`model.fit` of Keras 3 fails there.
"""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

DATA, OUTPUT = Path(os.environ["DATA_DIR"]), Path(os.environ["OUTPUT_DIR"])
SCHEMA = json.loads((DATA / "schema.json").read_text())
STATISTICS = json.loads((DATA / "statistics.json").read_text())["features"]
NAMES = [feature["name"] for feature in SCHEMA["features"]]
CLASSES = SCHEMA["label"]["classes"]


def training_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return the features (rows, columns) and classes (rows,) of the training split."""
    table = pq.read_table(DATA / "train")
    features = np.stack([table[name].to_numpy() for name in NAMES], axis=1, dtype=np.float32)
    classes = pc.index_in(table[SCHEMA["label"]["name"]], pa.array(CLASSES)).to_numpy()
    return features, classes


def main() -> None:
    """Train as one replica."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((len(NAMES),)),
                tf.keras.layers.Normalization(
                    mean=[STATISTICS[name]["mean"] for name in NAMES],
                    variance=[(STATISTICS[name]["std"] or 1) ** 2 for name in NAMES],
                ),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(len(CLASSES), activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    rows = tf.data.Dataset.from_tensor_slices(training_rows())
    rows = rows.shuffle(10_000).batch(int(os.environ["BATCH_SIZE"]))
    options = tf.data.Options()  # each replica takes its share of the rows
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(rows.with_options(options), epochs=int(os.environ["EPOCHS"]), verbose=2)

    # Every replica exports: only the OUTPUT_DIR of the chief is kept.
    model.export(str(OUTPUT / "model"))


if __name__ == "__main__":
    main()
