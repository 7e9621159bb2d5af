"""The task that writes one shard of a dataset, and describes its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kfp_tfjob.components.prepare_data.column_statistics import FeatureStatistics
from kfp_tfjob.components.prepare_data.distributions import Distributions
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.plan import Plan, plan_of, rows_of
from kfp_tfjob.components.prepare_data.raw_rows import RawRows
from kfp_tfjob.components.prepare_data.sorted_rows import Sorted
from kfp_tfjob.components.prepare_data.statistics import SPLITS, Statistics
from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.components.prepare_data.weights import WeightSums, weights_of
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store

_ENCODE_BYTES = 8 << 20  # encoded at a time
_TEST = SPLITS.index("test")


@dataclass(frozen=True)
class ShardDone:
    """What the task has written, and what it says of the rows.

    Attributes:
        objects: What is stored.
        statistics: `Statistics.to_plain`.
        distributions: `Distributions.to_plain`.
        weights: The sums of the weights, if there are any.
    """

    objects: list[ManifestObject]
    statistics: dict[str, Any]
    distributions: Any
    weights: WeightSums


def document(job: str, shard: int) -> str:
    """Return the name of what the task leaves."""
    return f"{job}/shard-{shard:06d}"


def shard(context: Context, item: tuple[str, int]) -> tuple[int, int]:
    """Write one shard to the store.

    Args:
        context: Where everything is.
        item: The name of the job, and the number of the shard.

    Returns:
        Its rows and its bytes.
    """
    plan = plan_of(context, item[0])
    wanted, encoder = plan.shards[item[1]], plan.encoder
    statistics = statistics_of(plan, wanted.before)
    distributions, sums = Distributions(plan.edges), WeightSums()
    path = context.folder / f"{wanted.stem}.tfrecord"
    raw_path = context.folder / f"{wanted.stem}.parquet"
    raw = None
    if wanted.split == _TEST and not plan.coding.is_identity:
        raw = RawRows(raw_path, plan.coding, plan.label, plan.job.options.weight)
    with open(path, "wb") as file:
        left, skipped = wanted.rows, wanted.skipped
        rows = rows_of(context, plan)
        texts = raw is not None and bool(plan.job.kinds.hashed)
        for found in rows.read(wanted.first, wanted.last, texts):
            start = min(skipped, len(found.rows))
            part = found.cut(start, start + left)
            skipped, left = skipped - start, left - len(part.rows)
            _encode(encoder, part, file)
            statistics.add(part.rows, wanted.split, part.labels)
            if (weights := weights_of(part.rows)) is not None:
                sums.add(weights, part.labels, len(plan.label.classes or ()))
            labels = part.labels if plan.label.classes is None else None
            distributions.add(SPLITS[wanted.split], part.rows, labels)
            if raw:
                raw.add(part.rows, part.labels, part.texts)
    if left:
        raise RuntimeError(f"{wanted.stem} lacks {left} of {wanted.rows} rows")
    objects = [_sent(context.store, plan, path)]
    if raw:
        raw.close()
        objects.append(_sent(context.store, plan, raw_path))
    done = ShardDone(objects, statistics.to_plain(), distributions.to_plain(), sums)
    context.exchange.write_plain(document(item[0], wanted.number), done)
    return wanted.rows, wanted.rows * encoder.record_bytes


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


def statistics_of(plan: Plan, before: int = 0) -> Statistics:
    """Return the statistics of no rows.

    Args:
        plan: The plan.
        before: Rows of train that come before the first one.
    """
    kinds = plan.job.kinds
    features = FeatureStatistics(plan.coding, kinds, before)
    return Statistics(features, plan.label, before)
