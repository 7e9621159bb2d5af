"""The test split of a prepared dataset: its schema, statistics and rows in batches.

The shards contain the values of the table, so that challenger and champion each encode them with
their own signature. Called by judge.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.common.names import below
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema, SchemaSplit
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import SCHEMA, STATISTICS, dataset_digest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT = "test"
BATCH = 4096  # rows: large enough for a GPU, and 2 MB of a table with 128 columns
_VALUES = 2_000_000  # in a batch of a wide table; raw strings take about 60 bytes each: 120 MB
_PICTURES = 64  # in a batch, because an image is decoded at its full size


class Batch(NamedTuple):
    """A batch of test rows.

    Attributes:
        features: A (batch,) array by column, the argument of `ServedModel.predict`.
        labels: (batch,) the true classes or values.
        weights: (batch,) float32, how much each row counts; None where all count the same.
        groups: (batch,) uint64, the hash of each row's group; None where rows are independent.
    """

    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None


@dataclass(frozen=True)
class TestData:
    """The test split on this machine.

    Attributes:
        digest: The dataset's digest, as in `dataset_digest`.
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        shards: The Parquet files of the test split, in order.
        rows: The number of test rows.
        trained_on: The shards of the test split with the same rows as a shard of another split.
        address: The dataset's address.
    """

    digest: str
    schema: Schema
    statistics: StatisticsDocument
    shards: tuple[Path, ...]
    rows: int
    trained_on: tuple[str, ...] = ()
    address: str = ""

    @classmethod
    def fetch(cls, store: Store, dataset: S3Address, folder: Path) -> TestData:
        """Download the test split to `folder` and verify it.

        Raises:
            DataError: The dataset is incomplete, was prepared by an earlier version, or contains no
                test rows.
        """
        manifest = pull(store, dataset, folder, {SCHEMA, STATISTICS}.__contains__)
        schema = Schema.from_bytes((folder / SCHEMA).read_bytes())
        schema.check_codec(str(dataset))
        statistics = StatisticsDocument.from_bytes((folder / STATISTICS).read_bytes())
        split = schema.splits.get(SPLIT, SchemaSplit())
        if not split.rows:
            raise DataError(
                Problem(
                    f"{dataset} has no test rows",
                    received=", ".join(f"{name} {count:,}" for name, count in schema.rows.items()),
                    expected="at least one row in the test split",
                    fix="start a new run with a dataset of prepare_data, which has test rows",
                )
            )
        pull(store, dataset, folder, set(split.shards).__contains__)
        return cls(
            dataset_digest(dataset, manifest),
            schema,
            statistics,
            tuple(below(folder, name) for name in split.shards),
            split.rows,
            trained_on=_shared_shards(split, schema),
            address=str(dataset),
        )

    def test_shards_used_by(self, store: Store, dataset: S3Address) -> tuple[str, ...]:
        """Return the names of test shards that another dataset uses for training or validation.

        Args:
            store: The store of the other dataset.
            dataset: The other dataset; if it was deleted, the result is empty.
        """
        try:
            schema = Schema.from_bytes(store.read(dataset / SCHEMA))
        except (DataError, InvalidDocumentError):
            return ()
        return _shared_shards(self.schema.splits[SPLIT], schema)

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """Yield the rows in order.

        Args:
            size: The most rows in a batch; for a wide table, a batch is smaller.

        Raises:
            DataError: A shard is damaged, a label or a weight is impossible, or the number of rows
                differs from the schema.
        """
        classes = self.schema.label.classes
        rows = 0
        size = max(1, min(size, _VALUES // len(self.schema.features)))
        if self.schema.picture:
            size = min(size, _PICTURES)
        for batch in _read_ahead(self._read(size)):
            labels, weights = batch.labels, batch.weights
            rows += len(labels)
            if classes and (labels.min() < 0 or labels.max() >= len(classes)):
                raise self._mismatch(
                    f"labels from {labels.min()} to {labels.max()}",
                    f"class numbers from 0 to {len(classes) - 1}",
                )
            if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
                wrong = weights[~(np.isfinite(weights) & (weights >= 0))][0]
                raise self._mismatch(f"the weight {wrong}", "weights that are numbers, 0 or more")
            yield batch
        if rows != self.rows:
            raise self._mismatch(f"{rows} rows", f"{self.rows} rows")

    def _read(self, size: int) -> Iterator[Batch]:
        """Yield rows from the Parquet files."""
        types = {feature.name: feature.column_type for feature in self.schema.features}
        label, weight = self.schema.label.name, self._weight
        group = self.schema.group
        extra = [name for name in (weight, group) if name]
        column_names = [*types, label, *extra]
        for path in self.shards:
            for batch in self._read_parquet(path, column_names, size):
                columns = {
                    name: column_type.raw_values(batch[name]) for name, column_type in types.items()
                }
                weights = None
                if weight:
                    weights = batch[weight].to_numpy(zero_copy_only=False).astype(np.float32)
                groups = batch[group].to_numpy(zero_copy_only=False) if group else None
                yield Batch(columns, self._labels_of(batch[label]), weights, groups)

    def _labels_of(self, column: pa.Array) -> np.ndarray:
        """Return the labels of rows: int64 classes, or float32 values.

        Raises:
            DataError: A label is missing, or is not a class.
        """
        classes = self.schema.label.classes
        if classes is None:
            return column.to_numpy(zero_copy_only=False).astype(np.float32)
        numbers = self.schema.label.numbers_of(column)
        if len(wrong := np.flatnonzero(numbers < 0)):
            name = column[int(wrong[0])].as_py()
            received = "a row without a label" if name is None else f"the label {name!r}"
            raise self._mismatch(received, f"the classes {listed(classes, 10)}")
        return numbers

    def _read_parquet(
        self, path: Path, columns: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        from pyarrow import ArrowException, parquet, types

        expected, reader = f"the columns {listed(columns, 10)}", None
        while True:
            try:
                if reader is None:
                    schema = parquet.read_schema(path)
                    if missing := set(columns).difference(schema.names):
                        raise self._mismatch(f"no column {sorted(missing)[0]!r}", expected)
                    strings = [field.name for field in schema if types.is_string(field.type)]
                    file = parquet.ParquetFile(path, read_dictionary=strings)
                    reader = file.iter_batches(size)
                batch = next(reader, None)
            except MemoryError:
                raise
            except (ArrowException, OSError) as error:
                received = f"{type(error).__name__}: {error}"[:500]
                raise self._mismatch(received, expected) from error
            if batch is None:
                return
            yield batch

    @property
    def _weight(self) -> str:
        """The name of the weight column; empty where all rows count the same."""
        return self.schema.weight.name if self.schema.weight else ""

    def _mismatch(self, received: str, expected: str) -> DataError:
        return DataError(
            Problem(
                f"the test rows of dataset {self.digest} do not match its schema",
                received=received,
                expected=expected,
                fix=prepare_again(self.address),
            )
        )


def _read_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; a thread reads the next batch while the caller uses the current one."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch


def _shared_shards(test: SchemaSplit, schema: Schema) -> tuple[str, ...]:
    """Return the names of test shards whose rows a model was also trained or validated with.

    Args:
        test: The test split.
        schema: The dataset of the model's training.
    """
    training_digests = {
        digest for name, split in schema.splits.items() if name != SPLIT for digest in split.digests
    }
    # Older datasets contain no digests, so nothing can be said about their shards.
    pairs = zip(test.shards, test.digests, strict=False)
    return tuple(shard for shard, digest in pairs if digest in training_digests)
