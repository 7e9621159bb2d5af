"""What the tasks of one dataset have in common, as a document in the exchange."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

import numpy as np

from kfp_tfjob.components.prepare_data.executors.exchange import dump
from kfp_tfjob.components.prepare_data.executors.executor import Context, code_version
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Kinds
from kfp_tfjob.components.prepare_data.sorted_rows import edges_of, kind_of
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.split_rules import SplitRules
from kfp_tfjob.features.types.base import FIELDS
from kfp_tfjob.options.data import DataOptions

_NAME_LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True)
class Job:
    """A pass over the source.

    Attributes:
        source: The files.
        label: The label column.
        options: The typed `data_options`.
        columns: The columns of the first file.
        kinds: The kinds of the features; none if they are to be found out.
        limits: With data_options.split.time, the times from which rows are in the next split.
        block: Bytes of text to parse at a time.
        assumed: Whether the kinds are those of the first block, and are compared with all values.
    """

    source: Source
    label: str
    options: DataOptions
    columns: Columns
    kinds: Kinds = NO_KINDS
    limits: tuple[float, ...] = ()
    block: int = 0
    assumed: bool = False

    @cached_property
    def fractions(self) -> list[float]:
        """The shares of the splits."""
        return list(self.options.split.fractions.values())

    @cached_property
    def split_rules(self) -> SplitRules:
        """What decides about the split of a row."""
        return SplitRules(self.source, self.options, np.array(self.limits))

    @cached_property
    def edges(self) -> np.ndarray:
        """The bins of the hashes."""
        return edges_of(self.source.size, self.fractions)

    @cached_property
    def row_kind(self) -> np.dtype:
        """The type of a row of the runs."""
        kinds, weighted = self.kinds, self.options.weight is not None
        floats, codes, wholes = (len(kinds.in_field(field)) for field in FIELDS)
        return kind_of(floats, codes, wholes, weighted)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(item.name for item in self.kinds.features)

    @cached_property
    def name(self) -> str:
        """A digest of everything that decides about the results, the code among it.

        So a later try takes nothing from one with another version of the image.
        """
        body = dump(replace(self, block=0))
        text = json.dumps([code_version(), body], sort_keys=True)
        return sha256(text.encode()).hexdigest()[:_NAME_LENGTH]


def job_of(context: Context, name: str) -> Job:
    """Return a job that the step has written to the exchange."""
    key = ("job", name)
    if key not in context.cache:
        job = context.exchange.read_plain(f"{name}/job", Job)
        source = replace(job.source, store=context.store)
        context.cache[key] = replace(job, source=source)
    return context.cache[key]
