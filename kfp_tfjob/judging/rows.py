"""Reads the prepared dataset for evaluate: its schema, statistics and test rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kfp_tfjob.features.record_layout import DamagedRecordError, Layout
from kfp_tfjob.features.records import TFRecords, prepare_again
from kfp_tfjob.features.schema import Schema, SchemaSplit
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.options.pictures import PICTURE
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import MANIFEST, SCHEMA, STATISTICS, dataset_digest
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.names import below
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT = "test"
BATCH = 4096  # rows
_VALUES = 2_000_000  # of a batch of a table with many columns; raw strings take about 60 bytes
_PICTURES = 64  # of a batch: each is decoded to its file's size


class Batch(NamedTuple):
    """Some test rows.

    Attributes:
        features: What `ServedModel.predict` takes: a (batch,) array by column.
        labels: (batch,) the true classes or values.
        weights: (batch,) float32, how much each row counts; None where all count the same.
    """

    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class TestData:
    """The test split on this machine.

    Attributes:
        digest: The dataset's digest, as in `dataset_digest`.
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        shards: The TFRecord files of the test split, in order; none if there is a raw file.
        rows: The number of rows of the split.
        raw: The Parquet files with the raw columns of the test split, in order; none if the shards
            have the raw values.
        trained_on: The shards of the test split with the same bytes as a shard of another split.
        contents: Size and checksum of each shard of the test split.
        address: The dataset's address.
    """

    digest: str
    schema: Schema
    statistics: StatisticsDocument
    shards: tuple[Path, ...]
    rows: int
    raw: tuple[Path, ...] = ()
    trained_on: tuple[str, ...] = ()
    contents: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    address: str = ""

    @classmethod
    def fetch(cls, store: Store, dataset: S3Address, folder: Path) -> TestData:
        """Download the test split to `folder` and verify it.

        Raises:
            DataError: The dataset is incomplete, or it has no test rows.
        """
        manifest = pull(store, dataset, folder, {SCHEMA, STATISTICS}.__contains__)
        schema = Schema.from_bytes((folder / SCHEMA).read_bytes())
        statistics = StatisticsDocument.from_bytes((folder / STATISTICS).read_bytes())
        split = schema.splits.get(SPLIT, SchemaSplit())
        if not split.rows:
            raise DataError(
                Problem(
                    f"{dataset} has no test rows",
                    received=f"splits {schema.rows}",
                    expected="at least one row in the test split",
                    fix="give the test split a share in data_options",
                )
            )
        raw = schema.test_raw
        names = raw or split.shards
        pull(store, dataset, folder, set(names).__contains__)
        paths = tuple(below(folder, name) for name in names)
        shards, tables = ((), paths) if raw else (paths, ())
        found = _contents(manifest, split.shards)
        repeated = _shared(found, _contents(manifest, _others(schema)))
        digest = dataset_digest(dataset, manifest)
        parts = (schema, statistics, shards, split.rows, tables, repeated, found)
        return cls(digest, *parts, address=str(dataset))

    def seen_in(self, store: Store, dataset: S3Address) -> tuple[str, ...]:
        """Return the test shards that are shards for training in another dataset.

        Args:
            store: The store of that dataset.
            dataset: The dataset; if it was deleted, no rows are returned.
        """
        try:
            manifest = store.read_manifest(dataset / MANIFEST)
            schema = Schema.from_bytes(store.read(dataset / SCHEMA))
        except (DataError, InvalidDocumentError):
            return ()
        return _shared(self.contents, _contents(manifest, _others(schema)))

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """Yield the rows in order.

        Args:
            size: The most rows of a batch; of a wide table, it has fewer.

        Raises:
            DataError: A record does not parse, a label or a weight is impossible, or the number of
                rows differs from the schema.
        """
        classes = self.schema.label.classes
        rows = 0
        size = max(1, min(size, _VALUES // len(self.schema.features)))
        if self.schema.picture:
            batches = self._pictures(min(size, _PICTURES))
        else:
            batches = self._raw(size) if self.raw else self._packed(size)
        for batch in _ahead(batches):
            labels, weights = batch.labels, batch.weights
            rows += len(labels)
            if classes and (labels.min() < 0 or labels.max() >= len(classes)):
                raise self._corrupt(
                    f"labels from {labels.min()} to {labels.max()}",
                    f"class numbers from 0 to {len(classes) - 1}",
                )
            if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
                wrong = weights[~(np.isfinite(weights) & (weights >= 0))][0]
                raise self._corrupt(f"the weight {wrong}", "weights that are numbers, 0 or more")
            yield batch
        if rows != self.rows:
            raise self._corrupt(f"{rows} rows", f"{self.rows} rows")

    def _packed(self, size: int) -> Iterator[Batch]:
        """Yield rows of numbers.

        The values are taken from their places in the records of prepare_data, which is ten times as
        fast as to parse them. The files were verified when they were downloaded, so the checksums
        of the records are not looked at again.
        """
        names, classes = self.schema.names, self.schema.label.classes
        count = None if classes is None else len(classes)
        layout = Layout.of(self.schema.encoding.lengths, count, bool(self._weight))
        for shard in self.shards:
            records = TFRecords([shard], self.address)
            for at in range(0, len(records), size):
                rows = np.arange(at, min(at + size, len(records)))
                try:
                    found = layout.decode(records.take(rows))
                except DamagedRecordError as error:
                    raise self._corrupt(str(error), "records that match schema.json") from error
                weights = found["weight"][:, 0] if self._weight else None
                features = dict(zip(names, found["features"].T, strict=True))
                yield Batch(features, found["label"][:, 0], weights)

    def _pictures(self, size: int) -> Iterator[Batch]:
        """Yield the files of images."""
        import tensorflow as tf

        parts = {
            PICTURE: tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        records = tf.data.TFRecordDataset([str(shard) for shard in self.shards])
        parsed = records.batch(size).map(
            lambda batch: tf.io.parse_example(batch, parts), tf.data.AUTOTUNE, deterministic=True
        )
        try:
            for batch in parsed.prefetch(2):
                yield Batch({PICTURE: batch[PICTURE].numpy()}, batch["label"].numpy())
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise self._corrupt(error.message[:500], "records that match schema.json") from error

    def _raw(self, size: int) -> Iterator[Batch]:
        """Yield rows with (batch,) arrays by column as features."""
        types = {it.name: it.column_type for it in self.schema.features}
        label = self.schema.label.name
        number = np.int64 if self._is_classification else np.float32
        wanted = [*types, label, *([self._weight] if self._weight else [])]
        for path in self.raw:
            for batch in self._parquet(path, wanted, size):
                columns = {name: it.raw_values(batch[name]) for name, it in types.items()}
                labels = batch[label].to_numpy(zero_copy_only=False).astype(number)
                weights = None
                if self._weight:
                    weights = batch[self._weight].to_numpy(zero_copy_only=False)
                    weights = weights.astype(np.float32)
                yield Batch(columns, labels, weights)

    def _parquet(self, path: Path, columns: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
        from pyarrow import ArrowException, parquet

        expected, read = f"the columns {listed(columns, 10)}", None
        while True:
            try:
                if read is None:
                    file = parquet.ParquetFile(path)
                    if missing := set(columns).difference(file.schema_arrow.names):
                        raise self._corrupt(f"no column {sorted(missing)[0]!r}", expected)
                    read = file.iter_batches(size)
                batch = next(read, None)
            except MemoryError:
                raise
            except (ArrowException, OSError) as error:
                received = f"{type(error).__name__}: {error}"[:500]
                raise self._corrupt(received, expected) from error
            if batch is None:
                return
            yield batch

    @property
    def _is_classification(self) -> bool:
        return self.schema.task == "classification"

    @property
    def _weight(self) -> str:
        """The column with the weights of the rows; empty where all count the same."""
        return self.schema.weight.name if self.schema.weight else ""

    def _corrupt(self, received: str, expected: str) -> DataError:
        return DataError(
            Problem(
                f"the test rows of dataset {self.digest} do not match its schema",
                received=received,
                expected=expected,
                fix=prepare_again(self.address),
            )
        )


def _ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; a thread reads each one while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch


def _contents(manifest: Manifest, keys: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return size and checksum of these objects."""
    wanted = set(keys)
    objects = [item for item in manifest.objects if item.key in wanted]
    return {item.key: (item.size, item.crc64nvme) for item in objects}


def _shared(
    test: Mapping[str, tuple[int, str]], others: Mapping[str, tuple[int, str]]
) -> tuple[str, ...]:
    """Return the test shards that others have, too, under any name."""
    contents = set(others.values())
    return tuple(key for key, content in test.items() if content in contents)


def _others(schema: Schema) -> list[str]:
    """Return the shards of the splits other than SPLIT."""
    return [key for name, it in schema.splits.items() if name != SPLIT for key in it.shards]
