# Who earns more than 50,000 a year? The rows come from a table
import json
import os

import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

# 1️⃣ Every replica runs this program
strategy = tf.distribute.MultiWorkerMirroredStrategy()

# 2️⃣ The rows, with missing values filled in
table = pq.read_table(os.environ["DATA_DIR"] + "/train")
fill = {"age": 40.0, "hours": 40.0, "member": False}
columns = [table[name].fill_null(value).to_numpy() for name, value in fill.items()]
features = np.stack(columns, axis=1, dtype=np.float32)
labels = table["income"].to_numpy() == ">50K"
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(32)

# 3️⃣ The model belongs in the scope
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Normalization(mean=features.mean(0), variance=features.var(0)),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

# 4️⃣ Training
history = model.fit(dataset, epochs=int(os.environ["EPOCHS"]), verbose=2).history
print("losses", history["loss"], flush=True)

result = {
    "dataset": os.environ["DATASET_URI"],
    "files": sorted(os.listdir(os.environ["DATA_DIR"])),
    "columns": table.column_names,
    "rows": len(features),
    "positive": int(labels.sum()),
    "losses": history["loss"],
}
with open(os.environ["OUTPUT_DIR"] + "/result.json", "w") as file:
    json.dump(result, file)
