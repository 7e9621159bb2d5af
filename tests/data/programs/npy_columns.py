# Trains on a table that was converted to .npy files, with numpy and Keras only
import json
import os

import numpy as np
import tensorflow as tf

# 1. Every replica takes part
strategy = tf.distribute.MultiWorkerMirroredStrategy()

# 2. A file for each column
folder = os.environ["DATA_DIR"]
with open(f"{folder}/columns.json", encoding="utf-8") as file:
    index = json.load(file)


def load(split, column):
    return np.load(f"{folder}/{split}/{column['file']}", mmap_mode="r")


def rows(split):
    columns = [load(split, column) for column in index["columns"].values()]
    features = np.stack(columns, axis=1).astype(np.float32)
    labels = load(split, index["label"])
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((features, np.array(labels)))
    return dataset.shuffle(len(labels), seed=0).batch(32).with_options(options)


# 3. The model belongs inside the scope
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((len(index["columns"]),)),
            tf.keras.layers.Rescaling(1 / 16),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

# 4. Training, then the model that is evaluated
model.fit(
    rows("train"), validation_data=rows("validation"), epochs=int(os.environ["EPOCHS"]), verbose=2
)
model.export(os.environ["OUTPUT_DIR"] + "/model")
