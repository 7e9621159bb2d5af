"""Writes prepared datasets for the trainer's benchmarks with the writer of prepare_data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import NO_DATE, Missing
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number

CLASSES = 10
TEXTS = 100  # of each column of categories
_GAPS = 0.05  # share of the values
_LATEST = 1_800_000_000_000_000  # microseconds since 1970
_BLOCK = 4096  # rows


def write(
    folder: Path, rows: int, features: int, shards: int = 8, codes: int = 0, dates: int = 0
) -> Path:
    """Write random rows of a classification as the split train.

    Args:
        folder: The target folder, created if missing.
        rows: Rows of the split train, the only one.
        features: Number of columns of numbers.
        shards: Number of files.
        codes: Number of columns of categories; with one, each kind has missing values.
        dates: Number of columns of dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random, encoder = np.random.default_rng(1), Encoder(features, CLASSES, codes, dates)
    names = [f"train-{shard:05d}.tfrecord" for shard in range(shards)]
    share = _GAPS if codes else 0
    for shard, name in enumerate(names):
        left = rows * (shard + 1) // shards - rows * shard // shards
        with open(folder / name, "wb") as file:
            while left:
                count = min(left, _BLOCK)
                values = random.standard_normal((count, features), np.float32)
                labels = random.integers(0, CLASSES, count)
                texts = random.integers(1, TEXTS + 1, (count, codes))
                times = random.integers(0, _LATEST, (count, dates))
                for part, gap in ((values, np.nan), (texts, 0), (times, NO_DATE)):
                    part[random.random(part.shape) < share] = gap
                file.write(encoder.encode(values, labels, texts, times))
                left -= count
    coding = _coding(features, codes, dates)
    schema = {
        "format": "kfp-tfjob/schema/1",
        "task": "classification",
        "label": {"name": "y", "classes": [str(at) for at in range(CLASSES)]},
        "splits": {"train": {"rows": rows, "shards": names}},
        "features": [{"name": it.name, "type": it.schema_type} for it in coding.features],
        "coding": [it.learned for it in coding.features],
    }
    moments = {"mean": 0.0, "std": 1.0}
    statistics = {
        "features": {feature.name: moments for feature in coding.features},
        "packed": [{"name": name} | moments for name in coding.names],
        "label": {"train": moments},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder


def _coding(features: int, codes: int, dates: int) -> Coding:
    texts = tuple(f"text {at}" for at in range(TEXTS))
    missing = Missing("median", 0) if codes or dates else None
    return Coding(
        (
            *(Number(f"x{at}", missing) for at in range(features)),
            *(Category(f"c{at}", dictionary=texts, vocabulary=texts[::2]) for at in range(codes)),
            *(Date(f"d{at}", missing, origin=0) for at in range(dates)),
        )
    )
