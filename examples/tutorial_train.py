"""Your own program, in the shape of TensorFlow's tutorials: a strategy, compile, fit, export.

    kfp-tfjob run --data FILE.csv --label COLUMN --model examples/tutorial_train.py:main \
        --set 'train_options.command=["python3", "$(JOB_DIR)/code/tutorial_train.py"]'

On several replicas, the supervisor gives it Keras 2, because `model.fit` of Keras 3 fails there.
"""

import json
import os
from pathlib import Path

import tensorflow as tf

DATA, OUTPUT = Path(os.environ["DATA_DIR"]), Path(os.environ["OUTPUT_DIR"])
SCHEMA = json.loads((DATA / "schema.json").read_text())
STATISTICS = json.loads((DATA / "statistics.json").read_text())["features"]
NAMES = [feature["name"] for feature in SCHEMA["features"]]


def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the features and classes of a batch."""
    columns = {
        "features": tf.io.FixedLenFeature([len(NAMES)], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = tf.io.parse_example(records, columns)
    return found["features"], found["label"]


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
                tf.keras.layers.Dense(len(SCHEMA["label"]["classes"]), activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    rows = tf.data.TFRecordDataset(sorted(map(str, DATA.glob("train-*.tfrecord"))))
    rows = rows.shuffle(10_000).batch(int(os.environ["BATCH_SIZE"])).map(parse)
    options = tf.data.Options()  # each replica takes its share of the rows of every file
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    model.fit(rows.with_options(options), epochs=int(os.environ["EPOCHS"]), verbose=2)

    # Every replica exports: only the OUTPUT_DIR of the chief is kept.
    model.export(str(OUTPUT / "model"))


if __name__ == "__main__":
    main()
