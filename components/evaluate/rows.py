"""Reads the prepared dataset for evaluate: its schema, statistics and test rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import SCHEMA, STATISTICS
from kfp_tfjob.storage.names import below
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.coding import DATE, KINDS, NO_DATE, NUMBER
from kfp_tfjob.uploader import pull

SPLIT = "test"
BATCH = 4096  # rows; batching before parsing is 100 times faster than parsing rows one by one


@dataclass(frozen=True)
class TestData:
    """The test split on this machine.

    Attributes:
        digest: The digest of the dataset: the last part of its address.
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        shards: The TFRecord files of the test split, in order; none if there is a raw file.
        rows: The number of rows of the split.
        raw: The Parquet file with the raw columns of the test split, for a table that has more than
            numbers; None if models take packed rows.
    """

    digest: str
    schema: dict[str, Any]
    statistics: dict[str, Any]
    shards: tuple[Path, ...]
    rows: int
    raw: Path | None = None

    @classmethod
    def fetch(cls, store: Store, dataset: S3Address, folder: Path) -> TestData:
        """Download the test split to `folder` and verify it.

        Raises:
            DataError: The dataset is incomplete, or it has no test rows.
        """
        pull(store, dataset, folder, lambda key: key.endswith(".json"))
        schema = json.loads((folder / SCHEMA).read_bytes())
        statistics = json.loads((folder / STATISTICS).read_bytes())
        split = schema["splits"].get(SPLIT, {"rows": 0, "shards": []})
        if not split["rows"]:
            raise DataError(
                Problem(
                    f"{dataset} has no test rows",
                    received=f"splits {schema['splits']}",
                    expected="at least one row in the test split",
                    fix="give the test split a share in data_options",
                )
            )
        raw = schema.get("test_raw") if "coding" in schema else None
        names = [raw] if raw else split["shards"]
        pull(store, dataset, folder, set(names).__contains__)
        paths = tuple(below(folder, name) for name in names)
        shards, rows = () if raw else paths, int(split["rows"])
        return cls(dataset.name, schema, statistics, shards, rows, paths[0] if raw else None)

    def batches(self, size: int = BATCH) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield (features, labels): what `ServedModel.predict` takes, and a (batch,) array.

        Raises:
            DataError: A record does not parse, or the number of rows differs from the schema.
        """
        classes = self.schema["label"].get("classes")
        rows = 0
        for features, labels in self._packed(size) if self.raw is None else self._raw(size):
            rows += len(labels)
            if classes and (labels.min() < 0 or labels.max() >= len(classes)):
                raise self._corrupt(
                    f"labels from {labels.min()} to {labels.max()}",
                    f"class numbers from 0 to {len(classes) - 1}",
                )
            yield features, labels
        if rows != self.rows:
            raise self._corrupt(f"{rows} rows", f"{self.rows} rows")

    def _packed(self, size: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield (batch, features) float32 tensors and labels."""
        import tensorflow as tf

        kind = tf.int64 if self._is_classification else tf.float32
        parts = {
            "features": tf.io.FixedLenFeature([len(self.schema["features"])], tf.float32),
            "label": tf.io.FixedLenFeature([], kind),
        }
        records = tf.data.TFRecordDataset([str(shard) for shard in self.shards])
        parsed = records.batch(size).map(lambda batch: tf.io.parse_example(batch, parts))
        try:
            for batch in parsed.prefetch(2):
                yield batch["features"], batch["label"].numpy()
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise self._corrupt(error.message[:500], "records that match schema.json") from error

    def _raw(self, size: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yield (batch,) arrays by column, and labels."""
        import pyarrow as pa
        from pyarrow import parquet

        kinds = {it["name"]: KINDS[it["type"]] for it in self.schema["features"]}
        label = self.schema["label"]["name"]
        try:
            file = parquet.ParquetFile(self.raw)
            for batch in file.iter_batches(size):
                columns = {name: _filled(batch[name], kind) for name, kind in kinds.items()}
                labels = batch[label].to_numpy(zero_copy_only=False)
                yield columns, labels.astype(np.int64 if self._is_classification else np.float32)
        except (pa.ArrowException, KeyError, OSError) as error:
            expected = f"the columns {listed([*kinds, label], 10)}"
            raise self._corrupt(f"{type(error).__name__}: {error}"[:500], expected) from error

    @property
    def _is_classification(self) -> bool:
        return self.schema["task"] == "classification"

    def _corrupt(self, received: str, expected: str) -> DataError:
        return DataError(
            Problem(
                f"the test rows of dataset {self.digest} do not match its schema",
                received=received,
                expected=expected,
                fix="delete the dataset from the store; prepare_data then writes it again",
            )
        )


def _filled(column: Any, kind: str) -> np.ndarray:
    """Return the (rows,) values of a column of Arrow, with gaps as a model takes them."""
    import pyarrow as pa

    types = {NUMBER: (pa.float64(), float("nan")), DATE: (pa.int64(), NO_DATE)}
    arrow, gap = types.get(kind, (pa.string(), ""))
    filled = column.cast(arrow).fill_null(gap)
    return filled.to_numpy(zero_copy_only=False)
