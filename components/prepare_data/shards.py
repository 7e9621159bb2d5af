"""Plans the shards once all parts are read; the task that writes one, and describes its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.components.prepare_data.buckets import (
    BucketFile,
    RowRange,
    Sorted,
    SortedRows,
    Vocabulary,
    joined,
)
from kfp_tfjob.components.prepare_data.distributions import Distributions
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.labels import Label
from kfp_tfjob.components.prepare_data.statistics import Statistics
from kfp_tfjob.components.prepare_data.tasks import Job
from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.components.prepare_data.weights import weights_of
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store

SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Shard:
    """A range of one split's rows.

    Attributes:
        index: Its place in the split.
        rows: How many rows it has.
        bins: Where they are: the bins with its first row and its last one, and those between.
        skipped: Rows of the first bin that belong to the shard before.
    """

    split: int
    index: int
    rows: int
    bins: RowRange
    skipped: int

    @property
    def stem(self) -> str:
        """The name of its files without the ending."""
        return f"{SPLITS[self.split]}-{self.index:05d}"


@dataclass(frozen=True)
class Plan:
    """What all shards have in common.

    Attributes:
        label: The label with its task and classes; `class_of` is not used.
        bins: Those of the distributions, without rows.
    """

    job: Job
    base: S3Address
    label: Label
    coding: Coding
    bins: Distributions
    vocabulary: Vocabulary

    @property
    def encoder(self) -> Encoder:
        """The encoder of the rows."""
        classes = None if self.label.classes is None else len(self.label.classes)
        return encoder_of(self.job, classes)


def encoder_of(job: Job, classes: int | None) -> Encoder:
    """Return the encoder of a job's rows."""
    floats, codes, dates = (job.row_kind[key].shape[0] for key in ("features", "codes", "dates"))
    return Encoder(floats, classes, codes, dates, "weight" in (job.row_kind.names or ()))


def shards_of(
    rows: SortedRows,
    files: Sequence[BucketFile],
    counts: np.ndarray,
    splits: np.ndarray,
    record_bytes: int,
) -> Iterator[Shard]:
    """Yield the shards, given the rows and the split of each bin, and the bytes of a record."""
    for split in range(len(SPLITS)):
        start, end = np.searchsorted(splits, [split, split + 1]).tolist()
        ends = np.cumsum(counts[start:end])
        before = 0
        for index, count in enumerate(shard_rows(int(ends[-1]) if len(ends) else 0, record_bytes)):
            first = int(np.searchsorted(ends, before, side="right"))
            last = min(int(np.searchsorted(ends, before + count)) + 1, len(ends))
            skipped = before - (int(ends[first - 1]) if first else 0)
            bins = rows.range(files, counts, start + first, start + last)
            yield Shard(split, index, count, bins, skipped)
            before += count


def shard_rows(rows: int, record_bytes: int) -> list[int]:
    """Return the rows of each shard of a split: at most about 64 MiB, and as equal as possible."""
    shards = max(1, -(-rows * record_bytes // SHARD_BYTES))
    return [rows // shards + (i < rows % shards) for i in range(shards)]


_GROUP_ROWS = 1 << 16


class RawRows:
    """Writes the test split as raw columns, for models that are compared by name.

    Features keep their names: a number is float64, NaN if missing; a boolean, category or text is
    a string, empty if missing; a date is int64 microseconds since 1970 in UTC, -2**63 if
    missing. A weight is float32. The label is the index of its class as int64, or float32. The rows
    are in the order of the shards.
    """

    def __init__(self, path: Path, coding: Coding, label: Label, weight: str | None = None) -> None:
        self._coding, self._label = coding, label
        fields = [
            (feature.name, pa.type_for_alias(feature.raw_types[0])) for feature in coding.features
        ]
        kind = pa.float32() if label.classes is None else pa.int64()
        weights = [] if weight is None else [(weight, pa.float32())]
        self._schema = pa.schema([*fields, *weights, (label.name, kind)])
        self._writer = pq.ParquetWriter(path, self._schema)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: np.ndarray, labels: np.ndarray, texts: Sequence[pa.Array] = ()) -> None:
        """Add rows, with the strings of each hashed column."""
        hashed = iter(texts)
        columns = [
            next(hashed) if feature.is_hashed else feature.raw_column(rows[field.name][:, place])
            for feature, (field, place) in zip(
                self._coding.features, self._coding.places, strict=True
            )
        ]
        if (weights := weights_of(rows)) is not None:
            columns.append(pa.array(weights))
        columns.append(pa.array(labels).cast(self._schema.field(-1).type))
        self._waiting.append(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left, and end the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table, row_group_size=len(table))
        self._waiting, self._rows = [], 0


_ENCODE_BYTES = 8 << 20  # encoded at a time
_COUNTED_BYTES, _FEWEST_COUNTED = 4 << 20, 4096  # for distributions.json at a time
_TEST = SPLITS.index("test")


@dataclass(frozen=True)
class ShardDone:
    """What the task has stored, and what its rows add up to."""

    objects: list[ManifestObject]
    statistics: Statistics
    distributions: list[np.ndarray]


def shard(context: Context, plan: Plan, shard_plan: Shard) -> ShardDone:
    """Write one shard of a plan to the store."""
    encoder = plan.encoder
    statistics = Statistics.empty(plan.coding, plan.label)
    distributions = replace(plan.bins)
    path = context.folder / f"{shard_plan.stem}.tfrecord"
    raw_path = context.folder / f"{shard_plan.stem}.parquet"
    raw = None
    if shard_plan.split == _TEST and not plan.coding.is_identity:
        raw = RawRows(raw_path, plan.coding, plan.label, plan.job.options.weight)
    with open(path, "wb") as file:
        remaining, skipped = shard_plan.rows, shard_plan.skipped
        waiting: list[Sorted] = []
        most = max(_FEWEST_COUNTED, _COUNTED_BYTES // plan.job.row_kind.itemsize)
        rows = SortedRows(context.buckets, plan.job.row_kind, plan.job.bins, plan.vocabulary)
        texts = raw is not None and bool(plan.job.kinds.hashed)
        for piece in rows.read(shard_plan.bins, texts):
            start = min(skipped, len(piece.rows))
            part = piece.cut(start, start + remaining)
            skipped, remaining = skipped - start, remaining - len(part.rows)
            _encode(encoder, part, file)
            statistics.add(part.rows, shard_plan.split, part.labels, plan.coding)
            waiting.append(part)
            if sum(len(part.rows) for part in waiting) >= most:
                distributions.add(SPLITS[shard_plan.split], *_joined(waiting))
                waiting = []
            if raw:
                raw.add(part.rows, part.labels, part.texts)
    if waiting:
        distributions.add(SPLITS[shard_plan.split], *_joined(waiting))
    if remaining:
        raise RuntimeError(f"{shard_plan.stem} lacks {remaining} of {shard_plan.rows} rows")
    objects = [_sent(context.store, plan, path)]
    if raw:
        raw.close()
        objects.append(_sent(context.store, plan, raw_path))
    return ShardDone(objects, statistics, distributions.counts)


def _joined(parts: list[Sorted]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the labels of several groups."""
    return joined([part.rows for part in parts]), np.concatenate([part.labels for part in parts])


def _encode(encoder: Encoder, part: Sorted, file: IO[bytes]) -> None:
    step = max(1, _ENCODE_BYTES // encoder.record_bytes)
    for start in range(0, len(part.rows), step):
        rows, labels = part.rows[start : start + step], part.labels[start : start + step]
        weights = weights_of(rows)
        file.write(encoder.encode(rows["features"], labels, rows["codes"], rows["dates"], weights))


def _sent(store: Store, plan: Plan, path: Path) -> ManifestObject:
    """Store a file of the dataset; return its entry in the manifest."""
    sent = store.send(path, plan.base / path.name, path.name)
    path.unlink()
    return ManifestObject(sent.key, sent.size, sent.crc64nvme)
