"""A small prepared dataset with columns of every type and missing values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import NO_DATE, Missing
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String, bins_of
from tests.typed_schema import keys_of

ROWS = {"train": 3000, "validation": 200, "test": 400}
CLASSES = ("low", "high")
CITIES = tuple(f"city {number}" for number in range(30))
JOBS = ("nurse", "smith", "clerk")
FIRST_DAY, YEAR = 1_262_304_000_000_000, 31_557_600_000_000  # microseconds: 2010-01-01, a year


def write(folder: Path, task: str = "classification") -> Path:
    """Write shards, test.parquet, schema.json and statistics.json of a table of people."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(3)
    raw = {split: people(random, rows) for split, rows in ROWS.items()}
    declared = learned(raw["train"])
    splits: dict[str, Any] = {}
    classes = len(CLASSES) if task == "classification" else None
    packed, labels = {}, {}
    for split, columns in raw.items():
        labels[split] = _labels(columns, random, task)
        floats, codes, dates = stored(declared, columns)
        packed[split] = declared.pack(floats, codes, dates)
        name = f"{split}-00000.tfrecord"
        encoder = Encoder(floats.shape[1], classes, codes.shape[1], dates.shape[1])
        (folder / name).write_bytes(encoder.encode(floats, labels[split], codes, dates))
        splits[split] = {"rows": ROWS[split], "shards": [name]}
    parquet.write_table(pa.table(raw["test"] | {"income": labels["test"]}), folder / "test.parquet")
    schema = {
        "format": "kfp-tfjob/schema/1",
        "task": task,
        **keys_of(declared),
        "label": {"name": "income", "classes": list(CLASSES) if task == "classification" else None},
        "splits": splits,
        "schema_digest": "5" * 64,
        "test_raw": "test.parquet",
        "left_out": [],
    }
    statistics = {
        "features": {},
        "packed": moments(declared, packed["train"]),
        "label": {
            "train": {"mean": float(labels["train"].mean()), "std": float(labels["train"].std())},
            "counts": {
                "train": dict(zip(CLASSES, np.bincount(labels["train"].astype(int)).tolist()))  # noqa: B905
                if task == "classification"
                else None
            },
        },
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder


def people(random: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Return (rows,) raw columns by name, as test.parquet has them; a tenth are missing values."""

    def gaps(values: Any, gap: Any) -> np.ndarray:
        return np.where(random.random(rows) < 0.1, gap, values)

    cities = np.array(CITIES, object)[random.zipf(1.5, rows) % len(CITIES)]
    return {
        "age": gaps(random.normal(40, 12, rows), np.nan),
        "job": gaps(np.array(JOBS, object)[random.integers(0, 3, rows)], ""),
        "city": gaps(cities, ""),
        "signed up": gaps(FIRST_DAY + random.integers(0, 10 * YEAR, rows), NO_DATE),
        "member": gaps(np.array(["true", "false"], object)[random.integers(0, 2, rows)], ""),
        "note": np.array([f"note {n}" for n in random.integers(0, 500, rows)], object),
    }


def learned(train: Mapping[str, np.ndarray]) -> Coding:
    """Return the coding of these columns."""

    def texts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        counts = Counter(text for text in train[name].tolist() if text)
        kept = sorted((-count, text) for text, count in counts.items() if count > 1)
        return tuple(counts), tuple(text for _, text in kept)

    dates = train["signed up"][train["signed up"] != NO_DATE]
    jobs, cities = texts("job"), texts("city")
    return Coding(
        (
            Number("age", Missing("median", float(np.nanmedian(train["age"])), True)),
            Category("job", dictionary=jobs[0], vocabulary=jobs[1]),
            Category("city", dictionary=cities[0], vocabulary=cities[1]),
            Date("signed up", Missing("median", int(np.median(dates))), origin=int(dates.min())),
            Boolean("member", Missing("most_frequent", 1)),
            String("note", bins=64),
        )
    )


def stored(
    declared: Coding, columns: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the floats, codes and dates of the shards."""
    floats, codes, dates = [], [], []
    for feature in declared.features:
        values = columns[feature.name]
        if feature.kind == "number":
            floats.append(values.astype(np.float32))
        elif feature.kind == "boolean":
            floats.append([{"true": 1, "false": 0}.get(value, np.nan) for value in values])
        elif feature.kind == "date":
            dates.append(values)
        elif feature.kind == "text":
            codes.append(bins_of([value.encode() for value in values], feature.bins) + 1)
        else:
            places = {text: at for at, text in enumerate(("", *feature.dictionary))}
            codes.append([places.get(value, 0) for value in values])
    return (
        np.array(floats, np.float32).T,
        np.array(codes, np.int64).T,
        np.array(dates, np.int64).T,
    )


def moments(declared: Coding, rows: np.ndarray) -> list[dict[str, Any]]:
    """Return `packed` of statistics.json for (rows, width) packed rows."""
    mean, std = rows.mean(0, dtype=float), rows.std(0, dtype=float)
    mean[declared.numbers :], std[declared.numbers :] = 0, 1
    return [
        {"name": name, "mean": float(mean[at]), "std": float(std[at])}
        for at, name in enumerate(declared.names)
    ]


def _labels(
    columns: Mapping[str, np.ndarray], random: np.random.Generator, task: str
) -> np.ndarray:
    jobs = {job: at - 1 for at, job in enumerate(JOBS)}
    cities = {city: np.sin(at) for at, city in enumerate(CITIES)}
    score = (
        np.nan_to_num(columns["age"] - 40) / 12
        + np.array([jobs.get(job, 0) for job in columns["job"]])
        + 2 * np.array([cities.get(city, 0) for city in columns["city"]])
        + np.where(columns["member"] == "true", 1, 0)
        + random.normal(0, 0.3, len(columns["age"]))
    )
    return (score > 0.5).astype(np.int64) if task == "classification" else score.astype(np.float32)
