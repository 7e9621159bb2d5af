"""A small prepared dataset, written with TensorFlow's own writer and pushed with its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push

ROWS = {"train": 2003, "validation": 37, "test": 20}
SHARDS = 3
# A space and two names that TensorFlow would make equal.
FEATURES = ("mean radius", "a.b", "a_b", "size", "x", "y")
CLASSES = ("no", "yes", "maybe")


def write(folder: Path, task: str = "classification", wrong_label: bool = False) -> Path:
    """Write shards, schema.json and statistics.json of a problem that can be learned.

    Args:
        folder: Where to; made.
        task: `classification` or `regression`.
        wrong_label: Whether one training row has a class that does not exist.
    """
    import tensorflow as tf

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    scale = np.array([1, 10, 0.1, 1000, 1, 0], np.float32)  # one column is constant
    features, labels, splits = {}, {}, {}
    truth = random.normal(size=(len(FEATURES), len(CLASSES))) * (scale[:, None] > 0)
    for split, rows in ROWS.items():
        raw = random.normal(size=(rows, len(FEATURES))).astype(np.float32)
        features[split] = raw * scale + np.float32(3)
        noise = random.normal(size=(rows, len(CLASSES))) * 0.3
        scores = raw @ truth + noise
        labels[split] = scores.argmax(1) if task == "classification" else 50 + 20 * scores[:, 0]
    if wrong_label:
        labels["train"][11] = len(CLASSES)
    for split, rows in ROWS.items():
        names = []
        for shard in range(SHARDS):
            names.append(f"{split}-{shard:05d}.tfrecord")
            with tf.io.TFRecordWriter(str(folder / names[-1])) as writer:
                for row in range(rows * shard // SHARDS, rows * (shard + 1) // SHARDS):
                    writer.write(_example(features[split][row], labels[split][row], task))
        splits[split] = {"rows": rows, "shards": names}
    schema: dict[str, Any] = {
        "format": "kfp-tfjob/schema/1",
        "task": task,
        "features": [{"name": name, "type": "float32"} for name in FEATURES],
        "label": {"name": "label", "classes": list(CLASSES) if task == "classification" else None},
        "splits": splits,
    }
    statistics = {
        "features": {name: _moments(features["train"][:, at]) for at, name in enumerate(FEATURES)},
        "label": {"train": _moments(labels["train"])},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder


def send(store: Store, folder: Path, address: S3Address) -> S3Address:
    """Push a written dataset."""
    push(store, folder, address, "dataset")
    return address


def _example(features: np.ndarray, label: Any, task: str) -> bytes:
    import tensorflow as tf

    number = (
        tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)]))
        if task == "classification"
        else tf.train.Feature(float_list=tf.train.FloatList(value=[float(label)]))
    )
    columns = {
        "features": tf.train.Feature(float_list=tf.train.FloatList(value=features.tolist())),
        "label": number,
    }
    return tf.train.Example(features=tf.train.Features(feature=columns)).SerializeToString()


def _moments(values: np.ndarray) -> Mapping[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values))}
