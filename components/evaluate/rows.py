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
        shards: The TFRecord files of the test split, in order.
        rows: The number of rows in them.
    """

    digest: str
    schema: dict[str, Any]
    statistics: dict[str, Any]
    shards: tuple[Path, ...]
    rows: int

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
        pull(store, dataset, folder, set(split["shards"]).__contains__)
        shards = tuple(below(folder, name) for name in split["shards"])
        return cls(dataset.name, schema, statistics, shards, int(split["rows"]))

    def batches(self, size: int = BATCH) -> Iterator[tuple[Any, np.ndarray]]:
        """Yield (features, labels): (batch, features) float32 tensor and (batch,) array.

        Raises:
            DataError: A record does not parse, or the number of rows differs from the schema.
        """
        import tensorflow as tf

        classes = self.schema["label"].get("classes")
        kind = tf.int64 if self.schema["task"] == "classification" else tf.float32
        parts = {
            "features": tf.io.FixedLenFeature([len(self.schema["features"])], tf.float32),
            "label": tf.io.FixedLenFeature([], kind),
        }
        records = tf.data.TFRecordDataset([str(shard) for shard in self.shards])
        parsed = records.batch(size).map(lambda batch: tf.io.parse_example(batch, parts))
        rows = 0
        try:
            for batch in parsed.prefetch(2):
                labels = batch["label"].numpy()
                rows += len(labels)
                if classes and (labels.min() < 0 or labels.max() >= len(classes)):
                    raise self._corrupt(
                        f"labels from {labels.min()} to {labels.max()}",
                        f"class numbers from 0 to {len(classes) - 1}",
                    )
                yield batch["features"], labels
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise self._corrupt(error.message[:500], "records that match schema.json") from error
        if rows != self.rows:
            raise self._corrupt(f"{rows} rows", f"{self.rows} rows")

    def _corrupt(self, received: str, expected: str) -> DataError:
        return DataError(
            Problem(
                f"the test rows of dataset {self.digest} do not match its schema",
                received=received,
                expected=expected,
                fix="delete the dataset from the store; prepare_data then writes it again",
            )
        )
