"""Writes prepared datasets for the trainer's benchmarks with the writer of prepare_data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kfp_tfjob.components.prepare_data.tfrecord import Encoder

CLASSES = 10
_BLOCK = 4096  # rows


def write(folder: Path, rows: int, features: int, shards: int = 8) -> Path:
    """Write random rows of a classification as the split train.

    Args:
        folder: The target folder, created if missing.
        rows: Rows of the split train, the only one.
        features: Number of columns.
        shards: Number of files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random, encoder = np.random.default_rng(1), Encoder(features, CLASSES)
    names = [f"train-{shard:05d}.tfrecord" for shard in range(shards)]
    for shard, name in enumerate(names):
        left = rows * (shard + 1) // shards - rows * shard // shards
        with open(folder / name, "wb") as file:
            while left:
                count = min(left, _BLOCK)
                values = random.standard_normal((count, features), np.float32)
                file.write(encoder.encode(values, random.integers(0, CLASSES, count)))
                left -= count
    columns = [f"x{at}" for at in range(features)]
    schema = {
        "format": "kfp-tfjob/schema/1",
        "task": "classification",
        "features": [{"name": name, "type": "float32"} for name in columns],
        "label": {"name": "y", "classes": [str(at) for at in range(CLASSES)]},
        "splits": {"train": {"rows": rows, "shards": names}},
    }
    moments = {"mean": 0.0, "std": 1.0}
    statistics = {"features": dict.fromkeys(columns, moments), "label": {"train": moments}}
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder
