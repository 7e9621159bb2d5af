"""A small prepared dataset with columns of every type and missing values."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

ROWS = {"train": 3000, "validation": 200, "test": 400}
CLASSES = ("poor", "rich")
RAW = "test/00000.parquet"  # of the dataset
CITIES = tuple(f"city {number}" for number in range(30))
JOBS = ("nurse", "smith", "clerk")
FIRST_DAY, YEAR = 1_262_304_000_000_000, 31_557_600_000_000  # microseconds: 2010-01-01, a year


def prepare(store: Store, base: S3Address, folder: Path) -> S3Address:
    """Prepare a table of people below `base`, and fetch the dataset; returns its address."""
    folder.mkdir(parents=True)
    table = folder.with_suffix(".parquet")
    random = np.random.default_rng(3)
    parts = []
    for split, rows in ROWS.items():
        columns: dict[str, Any] = people(random, rows)
        score = np.nan_to_num(columns["age"] - 40) / 12 + (columns["member"] == "true")
        rich = score + random.normal(0, 0.3, rows) > 0.5
        columns["income"] = np.where(rich, *reversed(CLASSES))
        dates = columns["signed up"]
        columns["signed up"] = pa.array(dates, pa.timestamp("us"), mask=dates == NO_DATE)
        parts.append(pa.table(columns | {"part": [split] * rows}))
    parquet.write_table(pa.concat_tables(parts), table)
    options = {"split": {"column": "part"}, "types": {"note": "text"}, "hash_bins": 5000}
    options["missing"] = {"age": {"rule": "median", "indicator": True}}
    step = Step("prepare_data", "r1", Layout(base), store)
    done = run(step, str(table), "income", options)
    dataset = S3Address.parse(done.dataset_uri)
    pull(store, dataset, folder)
    return dataset


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
