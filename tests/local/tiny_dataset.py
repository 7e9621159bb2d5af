"""A small prepared dataset, pushed with its manifest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CODEC_VERSION
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from tests.parquet_split import write_split

ROWS = {"train": 2003, "validation": 37, "test": 20}
SHARDS = 3
# A space and two names that TensorFlow would make equal.
FEATURES = ("mean radius", "a.b", "a_b", "size", "x", "y")
CLASSES = ("no", "yes", "maybe")


def write(folder: Path, task: str = "classification", wrong_label: bool = False) -> Path:
    """Write a problem that can be learned; with a wrong label, one row has no class that exists."""
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
    for split in ROWS:
        columns = dict(zip(FEATURES, features[split].T, strict=True))
        classes = CLASSES if task == "classification" else None
        splits[split] = write_split(
            folder, split, columns, labels[split], "label", classes, shards=SHARDS
        )
    schema: dict[str, Any] = {
        "format": "kfp-tfjob/schema/1",
        "task": task,
        "features": [{"name": name, "type": "float32"} for name in FEATURES],
        "label": {"name": "label", "classes": list(CLASSES) if task == "classification" else None},
        "splits": splits,
        "codec": {"version": CODEC_VERSION},
    }
    statistics = {
        "features": {name: _moments(features["train"][:, at]) for at, name in enumerate(FEATURES)},
        "label": {"train": _moments(labels["train"])},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder


def send(store: Store, folder: Path, address: S3Address) -> S3Address:
    push(store, folder, address, "dataset")
    return address


def _moments(values: np.ndarray) -> Mapping[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values))}
