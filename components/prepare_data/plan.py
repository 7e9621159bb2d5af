"""What the tasks that write shards have in common: it is decided once all parts are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from kfp_tfjob.components.prepare_data.distributions import Edges
from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.job import Job, job_of
from kfp_tfjob.components.prepare_data.plain import Unstored
from kfp_tfjob.components.prepare_data.runs import Run
from kfp_tfjob.components.prepare_data.sorted_rows import Meaning, SortedRows
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.storage.address import S3Address

SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Shard:
    """A range of the rows of one split.

    Attributes:
        number: Its place in the dataset.
        split: Index of the split.
        index: Its place in the split.
        before: Rows of the split that come before.
        rows: Its rows.
        first: The bin with its first row.
        last: The bin after the one with its last row.
        skipped: Rows of the bin `first` that belong to the shard before.
    """

    number: int
    split: int
    index: int
    before: int
    rows: int
    first: int
    last: int
    skipped: int

    @property
    def stem(self) -> str:
        """The name of its files without the ending."""
        return f"{SPLITS[self.split]}-{self.index:05d}"


@dataclass(frozen=True)
class Plan:
    """How the shards are written.

    Attributes:
        job: The pass that has read the rows.
        base: The folder of the dataset.
        label: The label with its task and classes; `class_of` is not used.
        coding: What was learned.
        edges: The bins of the distributions.
        runs: The name and the part of each run.
        shards: The shards.
    """

    job: Unstored[Job]
    base: S3Address
    label: Label
    coding: Annotated[Coding, PlainValidator(Coding.of_schema), PlainSerializer(Coding.to_schema)]
    edges: Annotated[Edges, PlainValidator(Edges.from_plain), PlainSerializer(Edges.to_plain)]
    runs: list[tuple[str, int]]
    shards: list[Shard]

    @property
    def encoder(self) -> Encoder:
        """The encoder of the rows."""
        classes = None if self.label.classes is None else len(self.label.classes)
        return encoder_of(self.job, classes)


def encoder_of(job: Job, classes: int | None) -> Encoder:
    """Return the encoder of the rows of a job."""
    floats, codes, dates = (job.row_kind[key].shape[0] for key in ("features", "codes", "dates"))
    return Encoder(floats, classes, codes, dates, "weight" in (job.row_kind.names or ()))


def shards_of(rows: SortedRows, splits: np.ndarray, record_bytes: int) -> Iterator[Shard]:
    """Yield the shards.

    Args:
        rows: All rows.
        splits: Of shape [bins], the split of each bin.
        record_bytes: Bytes of a row in a shard.
    """
    number = 0
    for split in range(len(SPLITS)):
        start, end = np.searchsorted(splits, [split, split + 1]).tolist()
        ends = np.cumsum(rows.counts[start:end])
        before = 0
        for index, count in enumerate(shard_rows(int(ends[-1]) if len(ends) else 0, record_bytes)):
            first = int(np.searchsorted(ends, before, side="right"))
            last = int(np.searchsorted(ends, before + count))
            skipped = before - (int(ends[first - 1]) if first else 0)
            place = (start + first, start + min(last + 1, len(ends)), skipped)
            yield Shard(number, split, index, before, count, *place)
            before += count
            number += 1


def shard_rows(rows: int, record_bytes: int) -> list[int]:
    """Return the rows of each shard of a split: at most about 64 MiB, and as equal as possible."""
    shards = max(1, -(-rows * record_bytes // SHARD_BYTES))
    return [rows // shards + (i < rows % shards) for i in range(shards)]


def leave(exchange: Exchange, name: str, plan: Plan, meanings: list[Meaning]) -> None:
    """Leave a plan for the tasks.

    Args:
        exchange: Where to.
        name: Of the job.
        plan: The plan.
        meanings: What the codes of each part mean.
    """
    exchange.write_plain(f"{name}/plan", plan)
    for part, meaning in enumerate(meanings):
        exchange.write_plain(f"{name}/meaning-{part:06d}", meaning)


def plan_of(context: Context, name: str) -> Plan:
    """Return the plan that the step has left."""
    key = ("plan", name)
    if key not in context.cache:
        plan = context.exchange.read_plain(f"{name}/plan", Plan)
        context.cache[key] = replace(plan, job=job_of(context, name))
    return context.cache[key]


def rows_of(context: Context, plan: Plan) -> SortedRows:
    """Return the rows of a plan."""
    name, job = plan.job.name, plan.job
    key = ("runs", name)
    if key not in context.cache:
        context.cache[key] = [Run.read(context.exchange, *run) for run in plan.runs]

    def meaning(part: int) -> Meaning:
        return context.exchange.read_plain(f"{name}/meaning-{part:06d}", Meaning)

    is_class = plan.label.classes is not None
    runs = context.cache[key]
    return SortedRows(context.exchange, runs, job.row_kind, job.edges, is_class, meaning)
