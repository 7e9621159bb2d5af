"""Plans the shards once all parts are read; the task that writes one, and describes its rows.

Called where the dataset is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store

from .buckets import BucketFile, RowRange, Sorted, SortedRows, Vocabulary, joined
from .distributions import Distributions
from .executors.executor import Context
from .labels import Label
from .parquet_shard import ParquetShard
from .statistics import Statistics
from .tasks import Job

SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Shard:
    """Whole bins of one split.

    Attributes:
        index: Its place in the split.
        bins: The rows.
    """

    split: int
    index: int
    bins: RowRange

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return int(self.bins.counts.sum())

    @property
    def size(self) -> int:
        """The bytes of its rows."""
        return int(self.bins.sizes.sum())

    @property
    def key(self) -> str:
        """The name of its Parquet file, below the dataset."""
        return f"{SPLITS[self.split]}/{self.index:05d}.parquet"


@dataclass(frozen=True)
class Plan:
    """The settings that all shards share.

    Attributes:
        label: The label with its task and classes; `class_of` is not used.
        bins: The bins of the distributions, without rows.
    """

    job: Job
    base: S3Address
    label: Label
    coding: Coding
    bins: Distributions
    vocabulary: Vocabulary

    @property
    def group(self) -> str:
        """The column of the test rows with the hashes of their groups; empty without groups."""
        if not self.job.options.split.group:
            return ""
        names = {feature.name for feature in self.coding.features}
        names |= {self.label.name, self.job.options.weight or ""}
        name = "group_hash"
        while name in names:
            name += "_"
        return name


def shards_of(
    rows: SortedRows, files: Sequence[BucketFile], counts: np.ndarray, splits: np.ndarray
) -> Iterator[Shard]:
    """Yield the shards, given the rows and the split of each bin."""
    weights, unit_bytes = rows.weights(counts)
    for split in range(len(SPLITS)):
        start, end = np.searchsorted(splits, [split, split + 1]).tolist()
        for index, (first, last) in enumerate(pairwise(cuts_of(weights[start:end], unit_bytes))):
            yield Shard(split, index, rows.range(files, counts, start + first, start + last))


def cuts_of(weights: np.ndarray, unit_bytes: int) -> list[int]:
    """Return where the shards of a split begin among its bins, and where the last one ends.

    A shard has whole bins, about as much as the others, and at most about 64 MiB.

    Args:
        weights: The rows of each bin, or the bytes if rows differ much.
        unit_bytes: The bytes of a row, or 1.
    """
    ends = np.cumsum(weights)
    total = int(ends[-1]) if len(ends) else 0
    shards = max(1, -(-total * unit_bytes // SHARD_BYTES))
    shares = total * np.arange(1, shards) // shards
    cuts = np.unique(np.searchsorted(ends, shares) + 1)
    # Empty bins at the end belong to the last shard that contains rows.
    inner = (cut for cut in cuts.tolist() if int(ends[cut - 1]) < total)
    return [0, *inner, len(weights)]


_COUNTED_BYTES, _FEWEST_COUNTED = 4 << 20, 4096  # for distributions.json at a time


@dataclass(frozen=True)
class ShardDone:
    """A stored shard and the totals of its rows.

    Attributes:
        object: The shard's entry in the manifest.
        digest: The hash of the rows.
    """

    object: ManifestObject
    digest: str
    statistics: Statistics
    distributions: list[np.ndarray]


def shard(context: Context, plan: Plan, shard_plan: Shard) -> ShardDone:
    """Write one shard of a plan to the store."""
    statistics = Statistics.empty(plan.coding, plan.label)
    distributions = replace(plan.bins)
    kind, weight = plan.job.row_kind, plan.job.options.weight or ""
    group = plan.group if SPLITS[shard_plan.split] == "test" else ""
    path = context.folder / f"{SPLITS[shard_plan.split]}-{shard_plan.index:05d}.parquet"
    parquet = ParquetShard(path, plan.coding, plan.label, kind, weight, group)
    remaining = shard_plan.rows
    waiting: list[Sorted] = []
    most = max(_FEWEST_COUNTED, _COUNTED_BYTES // kind.itemsize)
    rows = SortedRows(context.buckets, kind, plan.job.bins, plan.vocabulary)
    for part in rows.read(shard_plan.bins):
        remaining -= len(part.rows)
        parquet.add(part)
        statistics.add(part.rows, shard_plan.split, part.labels, plan.coding)
        if distributions.is_needed:
            waiting.append(part)
        if sum(len(part.rows) for part in waiting) >= most:
            distributions.add(SPLITS[shard_plan.split], *_joined(waiting))
            waiting = []
    if waiting:
        distributions.add(SPLITS[shard_plan.split], *_joined(waiting))
    if remaining:
        raise RuntimeError(f"{shard_plan.key} lacks {remaining} of {shard_plan.rows} rows")
    parquet.close()
    stored = _sent(context.store, plan, path, shard_plan.key)
    return ShardDone(stored, parquet.digest, statistics, distributions.counts)


def _joined(parts: list[Sorted]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the labels of several groups."""
    return joined([part.rows for part in parts]), np.concatenate([part.labels for part in parts])


def _sent(store: Store, plan: Plan, path: Path, key: str) -> ManifestObject:
    """Store a file of the dataset; return its entry in the manifest."""
    sent = store.send(path, plan.base / key, key)
    path.unlink()
    return ManifestObject(sent.key, sent.size, sent.crc64nvme)
