"""Writes prepared datasets for the trainer's benchmarks, with random rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.storage.layout import CODEC_VERSION

CLASSES = [str(number) for number in range(10)]
STRINGS = [f"text {number}" for number in range(100)]  # of each column of categories
_MISSING = 0.05  # share of the values
_LATEST = 1_800_000_000_000_000  # microseconds since 1970
_BLOCK = 4096  # rows


@dataclass(frozen=True)
class Block:
    """Random rows.

    Attributes:
        numbers: (rows, columns) float32, NaN if missing.
        codes: (rows, columns) int64, 1 + the index in STRINGS, 0 if missing.
        dates: (rows, columns) int64 microseconds since 1970, NO_DATE if missing.
        labels: (rows,) the index in CLASSES.
    """

    numbers: np.ndarray
    codes: np.ndarray
    dates: np.ndarray
    labels: np.ndarray

    def table(self) -> pa.Table:
        """Return the rows as columns, with the types of a prepared dataset."""
        is_plain = not self.codes.shape[1] and not self.dates.shape[1]
        columns = {}
        for at, values in enumerate(self.numbers.T):
            wide = values if is_plain else values.astype(np.float64)
            columns[f"x{at}"] = pa.array(wide, mask=np.isnan(wide))
        for at, codes in enumerate(self.codes.T):
            indices = pa.array((codes - 1).astype(np.int32), mask=codes == 0)
            columns[f"c{at}"] = pa.DictionaryArray.from_arrays(indices, pa.array(STRINGS))
        for at, dates in enumerate(self.dates.T):
            columns[f"d{at}"] = pa.array(dates, pa.timestamp("us", "UTC"), mask=dates == NO_DATE)
        labels = pa.array(self.labels.astype(np.int32))
        return pa.table(columns | {"y": pa.DictionaryArray.from_arrays(labels, pa.array(CLASSES))})


def write(
    folder: Path, rows: int, features: int, shards: int = 8, codes: int = 0, dates: int = 0
) -> Path:
    """Write random rows of a classification as the split train.

    Args:
        folder: The target folder, created if missing.
        rows: Rows of the split train, the only one.
        features: Number of columns of numbers.
        shards: Number of files.
        codes: Number of columns of categories; with one, each column type has missing values.
        dates: Number of columns of dates.
    """
    random, names = np.random.default_rng(1), []
    for shard in range(shards):
        count = rows * (shard + 1) // shards - rows * shard // shards
        names.append(f"train/{shard:05d}.parquet")
        blocks = _blocks(random, count, features, codes, dates)
        write_shard(folder / names[-1], pa.concat_tables(block.table() for block in blocks))
    coding = _coding(features, codes, dates)
    schema = {
        "format": "kfp-tfjob/schema/1",
        "task": "classification",
        "label": {"name": "y", "classes": CLASSES},
        "splits": {"train": {"rows": rows, "shards": names}},
        "features": [{"name": it.name, "type": it.schema_type} for it in coding.features],
        "coding": [it.learned for it in coding.features],
        "codec": {"version": CODEC_VERSION},
    }
    moments = {"mean": 0.0, "std": 1.0}
    statistics = {
        "features": {feature.name: moments for feature in coding.features},
        "label": {"train": moments},
    }
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_text(json.dumps(statistics))
    return folder


def write_shard(path: Path, table: pa.Table) -> None:
    """Write a Parquet file as prepare_data does: zstd, and dictionaries for strings only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    strings = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    parquet.write_table(table, path, compression="zstd", use_dictionary=strings, store_schema=False)


def write_tutorial(folder: Path, split: str) -> list[Path]:
    """Write a split's rows as TensorFlow's tutorials do: one tf.train.Example for each row.

    A record contains the lists `features`, `codes`, `dates` and `label` of a Block.

    Returns:
        The TFRecord files, one for each shard.
    """
    import tensorflow as tf

    train = tf.train

    def numbers(values: list[float]) -> Any:
        return train.Feature(float_list=train.FloatList(value=values))

    def integers(values: list[int]) -> Any:
        return train.Feature(int64_list=train.Int64List(value=values))

    schema = json.loads((folder / "schema.json").read_text())
    (folder / "tutorial").mkdir(exist_ok=True)
    paths = []
    for name in schema["splits"][split]["shards"]:
        lists = _lists(parquet.read_table(folder / name), schema)
        kinds = {key: numbers if key == "features" else integers for key in lists}
        paths.append(folder / "tutorial" / name.replace("/", "-").replace(".parquet", ".tfrecord"))
        with tf.io.TFRecordWriter(str(paths[-1])) as writer:
            for row in zip(*lists.values(), strict=True):
                pairs = zip(lists, row, strict=True)
                features = {key: kinds[key](values.tolist()) for key, values in pairs}
                example = train.Example(features=train.Features(feature=features))
                writer.write(example.SerializeToString())
    return paths


def _lists(table: pa.Table, schema: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return (rows, columns) arrays by the list of a record that contains them."""
    import pyarrow.compute as pc

    def stacked(prefix: str, convert: Any) -> np.ndarray:
        return np.stack([convert(table[name]) for name in names if name[0] == prefix], axis=1)

    def codes(column: pa.ChunkedArray) -> np.ndarray:
        return pc.add(pc.index_in(column, pa.array(STRINGS)), 1).fill_null(0).to_numpy()

    names = [feature["name"] for feature in schema["features"]]
    labels = pc.index_in(table["y"], pa.array(schema["label"]["classes"])).to_numpy()
    lists = {
        "features": stacked("x", lambda column: column.to_numpy().astype(np.float32)),
        "label": labels.astype(np.int64)[:, None],
    }
    if any(name[0] == "c" for name in names):
        lists["codes"] = stacked("c", codes)
    if any(name[0] == "d" for name in names):
        lists["dates"] = stacked(
            "d", lambda column: column.cast(pa.int64()).fill_null(NO_DATE).to_numpy()
        )
    return lists


def _blocks(
    random: np.random.Generator, rows: int, features: int, codes: int, dates: int
) -> Iterator[Block]:
    share = _MISSING if codes else 0
    for start in range(0, rows, _BLOCK):
        count = min(rows - start, _BLOCK)
        block = Block(
            random.standard_normal((count, features), np.float32),
            random.integers(1, len(STRINGS) + 1, (count, codes)),
            random.integers(0, _LATEST, (count, dates)),
            random.integers(0, len(CLASSES), count),
        )
        missing = ((block.numbers, np.nan), (block.codes, 0), (block.dates, NO_DATE))
        for values, replacement in missing:
            values[random.random(values.shape) < share] = replacement
        yield block


def _coding(features: int, codes: int, dates: int) -> Coding:
    strings = tuple(STRINGS)
    missing = Missing("median", 0) if codes or dates else None
    return Coding(
        (
            *(Number(f"x{at}", missing) for at in range(features)),
            *(
                Category(f"c{at}", dictionary=strings, vocabulary=strings[::2])
                for at in range(codes)
            ),
            *(Date(f"d{at}", missing, origin=0) for at in range(dates)),
        )
    )
