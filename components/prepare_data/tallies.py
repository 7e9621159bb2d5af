"""Counts the strings of train, for the column types that learn their encoding from them.

It is a pass of its own over the sorted rows: the classes are known then, and the parts are shards,
so counts that are pruned to save memory do not depend on how the source was divided.

Called by dataset.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kfp_tfjob.features.cells import sorted_strings
from kfp_tfjob.features.types.base import CODES, Tally

from .buckets import SortedRows, Vocabulary
from .executors.executor import Context, Executor
from .labels import Label
from .shards import Shard
from .tasks import Job

_TASK = "kfp_tfjob.components.prepare_data.tallies:tally"


@dataclass(frozen=True)
class TallyPlan:
    """The settings that all shards share; `label` has the classes, and `class_of` is not used."""

    job: Job
    label: Label
    vocabulary: Vocabulary

    @property
    def empty(self) -> dict[str, Tally]:
        """The counts of no rows, by column; empty if no type learns from strings."""
        tallies = {
            feature.name: feature.type.tally(self.label.classes or ())
            for feature in self.job.kinds.features
        }
        return {name: tally for name, tally in tallies.items() if tally is not None}


def tally(context: Context, plan: TallyPlan, shard: Shard) -> dict[str, Tally]:
    """Return the counts of one shard, by column."""
    tallies = plan.empty
    places = {feature.name: at for at, feature in enumerate(plan.job.kinds.in_field(CODES))}
    rows = SortedRows(context.buckets, plan.job.row_kind, plan.job.bins, plan.vocabulary)
    for part in rows.read(shard.bins):
        for name, counts in tallies.items():
            # The dictionary has the strings of all rows of the bucket.
            codes, strings = sorted_strings(part.strings[places[name]])
            counts.add(strings.to_pylist(), codes, part.labels)
    return tallies


def tallies_of(executor: Executor, plan: TallyPlan, shards: Sequence[Shard]) -> Mapping[str, Tally]:
    """Return the counts over the shards of train, by column; empty if nothing needs them."""
    tallies = plan.empty
    if tallies:
        train = [shard for shard in shards if shard.split == 0]
        for part in executor.map(_TASK, plan, train):
            for name, counts in tallies.items():
                counts.merge(part[name])
    return tallies
