"""The task that reads a part of the source: it profiles the columns, and writes sorted runs.

Its result has everything but the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile, DistinctTexts, profile
from kfp_tfjob.components.prepare_data.columns_to_rows import Converter, Rows
from kfp_tfjob.components.prepare_data.dictionary import Bins, Dictionary
from kfp_tfjob.components.prepare_data.executors.executor import Context, Shared
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.fit_encoding import GROUPS, Counted
from kfp_tfjob.components.prepare_data.hashes import row_hashes, split_of
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Kinds, columns_of
from kfp_tfjob.components.prepare_data.labels import Labels
from kfp_tfjob.components.prepare_data.sorted_rows import Run, RunWriter, edges_of, kind_of
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.header import Columns, choose
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable, Chunk
from kfp_tfjob.components.prepare_data.source.readers.open_table import Part, open_table
from kfp_tfjob.components.prepare_data.split_rules import OverlapWriter, SplitRules, place
from kfp_tfjob.components.prepare_data.weights import read as read_weights
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.types.base import CODES, FIELDS
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import setting

_MOST_NAMED = 10  # columns


@dataclass(frozen=True)
class Job:
    """A pass over the source.

    Attributes:
        columns: The columns of the first file.
        limits: With data_options.split.time, the times from which rows are in the next split.
        block: Bytes of text to parse at a time.
        assumed: Whether the kinds are those of the first block, and are compared with all values.
        name: A folder of the exchange, which no other pass has.
    """

    source: Source
    label: str
    options: DataOptions
    columns: Columns
    kinds: Kinds = NO_KINDS
    limits: tuple[float, ...] = ()
    block: int = 0
    assumed: bool = False
    name: str = ""

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


def job_of(context: Context, shared: Shared[Job]) -> Job:
    """Return a job that the step has shared, with the store of this process."""
    if shared not in context.cache:
        job = context.load(shared)
        context.cache[shared] = replace(job, source=replace(job.source, store=context.store))
    return context.cache[shared]


@dataclass
class PartDone:
    """What a task has found in a part.

    Attributes:
        counted: What rows of train say, for rows with a number as label and for others.
        dictionaries: Of the categories.
        seen: The counts of each column; none if the kinds are known.
        reached: How far a range of text was read: its start, its end, and its lines.
        overlap: The name of what `count_overlap` counts.
    """

    labels: Labels
    counted: list[Counted]
    dictionaries: dict[str, Dictionary]
    seen: dict[str, ColumnProfile]
    faults: Faults = field(default_factory=Faults)
    runs: list[Run] = field(default_factory=list)
    reached: tuple[int, int, int] | None = None
    overlap: str | None = None

    @classmethod
    def empty(cls, job: Job) -> PartDone:
        """Return what a part without rows has."""
        dictionaries = {name: Dictionary() for name in job.kinds.with_dictionaries}
        seen = {
            name: ColumnProfile(name, texts=None if name in dictionaries else DistinctTexts())
            for name in (job.columns.features if job.assumed else ())
        }
        counted = [Counted.empty(job.kinds) for _ in range(GROUPS)]
        return cls(Labels(job.label), counted, dictionaries, seen)


def rows(context: Context, item: tuple[Shared[Job], Part]) -> PartDone:
    """Write the rows of one part of a job as sorted runs."""
    job, part = job_of(context, item[0]), item[1]
    found = _Found(job, context, part)
    for file in job.source.files[part.first : part.last + 1]:
        with open_table(job.source, file, job.options, job.block, part.span) as table:
            columns = _columns(job, table, file)
            for chunk in table.chunks(columns):
                found.add(file, chunk)
            if part.span:
                found.done.reached = table.reached
    return found.end()


def _columns(job: Job, table: ArrowTable, file: SourceFile) -> Columns:
    """Return the columns to read from a file, which must be those of the first one."""
    # A column to drop need not be in every file; `first_block` looked for it.
    options = job.options
    columns, problems = choose(table.header, job.label, options, file.name, options.drop)
    problems += table.problems(columns) if columns else []
    if columns and _read_columns(columns) != _read_columns(job.columns):
        problems.append(_other_columns(job, file.name, columns))
    DataError.raise_if(problems)
    assert columns is not None
    wanted = columns_of(job.kinds, job.label, columns.extra)
    # While kinds are assumed, those that may be left out are counted too.
    return replace(wanted, features=job.columns.features) if job.assumed else wanted


def _read_columns(columns: Columns) -> set[str]:
    """Return the features, and the column without a name that is dropped."""
    return {*columns.features, *([""] if columns.has_index else [])}


def _other_columns(job: Job, name: str, columns: Columns) -> Problem:
    others = _read_columns(job.columns)
    more = sorted(_read_columns(columns) - others)
    fewer = sorted(others - _read_columns(columns))
    spellings = {text.lower(): text for text in more}
    alike = [(text, spellings[text.lower()]) for text in fewer if text.lower() in spellings]
    fix = "".join(f"write {one!r} and {other!r} in the same way; or " for one, other in alike[:5])
    option, is_short = "data_options.drop", len(more) + len(fewer) <= _MOST_NAMED
    return Problem(
        f"{name} does not have the columns of {job.source.files[0].name}",
        received="; ".join(
            f"{kind} {', '.join(map(repr, names[:10]))}"
            for kind, names in (("additional", more), ("missing", fewer))
            if names
        ),
        expected="the same columns in every file, in any order",
        fix=f"{fix}list the features in data_options.columns, or drop the columns that some files"
        f" lack with {setting(option, [*job.options.drop, *more, *fewer]) if is_short else option}",
    )


class _Found:
    """What a part has: runs in the exchange, labels, faults and counts."""

    def __init__(self, job: Job, context: Context, part: Part) -> None:
        self._job, self._exchange = job, context.exchange
        self._converter = Converter(job.kinds, job.label, job.options.format_of(job.label))
        self._name = f"{job.name}/rows-{part.number:06d}"
        if part.span and part.span.exact:
            # A process that Dask takes for lost may still read the part from where it was guessed
            # to begin, and must not replace these rows.
            self._name += f"-from-{part.span.start}"
        self.done = PartDone.empty(job)
        self.texts: dict[str, Dictionary | Bins] = {
            item.name: self.done.dictionaries.get(item.name) or Bins(job.options.hash_bins)
            for item in job.kinds.in_field(CODES)
        }
        self.hashed = job.kinds.hashed
        self._runs = RunWriter(
            context.exchange, self._name, part.number, job.row_kind, job.edges, len(self.hashed)
        )
        self._overlap = OverlapWriter() if job.split_rules.is_needed else None

    def add(self, file: SourceFile, chunk: Chunk) -> None:
        """Add the good rows of a chunk."""
        job, weight = self._job, self._job.options.weight
        chunk.faults.dropping = job.options.dropping(chunk.columns, job.label)
        splits = job.split_rules.splits(file, chunk) if job.split_rules.is_needed else None
        weights = None if weight is None else read_weights(chunk, weight)
        if job.assumed:
            profile(self.done.seen, chunk)
        rows = self._converter.rows(chunk)
        keep = chunk.faults.good
        codes, hashed = self._coded(rows)
        hashes = row_hashes(rows.features, job.options.split.salt, hashed, rows.dates)
        if splits is not None:
            placed = place(hashes, splits[keep], job.fractions, job.split_rules.folders)
            if self._overlap:
                self._overlap.add(hashes, split_of(placed, job.fractions))
            hashes = placed
        self.done.faults.merge(rows.faults)
        split = split_of(hashes, job.fractions)
        labels, numbers = self.done.labels.add(rows, split)
        found: Any = np.empty(len(hashes), job.row_kind)
        found["hash"], found["code"], found["number"] = hashes, labels, numbers
        np.add(rows.features, np.float32(0), out=found["features"])  # -0.0 is 0.0
        found["codes"], found["dates"] = codes, rows.dates
        if weights is not None:
            found["weight"] = weights[keep]
        if any(counted.is_needed for counted in self.done.counted):
            train, other = found[split == 0], np.isnan(numbers[split == 0])
            for counted, mask in zip(self.done.counted, (~other, other), strict=True):
                counted.add(train if mask.all() else train[mask])
        self._runs.add(found, self._raw(rows, split))

    def _coded(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the strings' codes, int32 of shape [rows, texts], and their hashes, uint64."""
        codes = np.empty((len(rows.lines), len(self.texts)), np.int32)
        hashes = np.empty(codes.shape, np.uint64)
        for j, (coder, column) in enumerate(zip(self.texts.values(), rows.texts, strict=True)):
            codes[:, j], hashes[:, j] = coder.add(column)
        return codes, hashes

    def _raw(self, rows: Rows, split: np.ndarray) -> list[pa.Array]:
        """Return the strings of test, whose shards have only their bins; null for other rows."""
        mask = split == SPLITS.index("test")
        found = []
        for name, column in zip(self.texts, rows.texts, strict=True):
            if name in self.hashed:
                places = pa.array(column.codes, mask=~mask)
                found.append(pa.array(["", *column.texts], pa.string()).take(places))
        return found

    def end(self) -> PartDone:
        """Write what is left, and return what was found."""
        self._runs.flush()
        self.done.runs = self._runs.runs
        for column in self.done.seen.values():
            column.forms = {}  # only this part needs them
        if self._overlap:
            self.done.overlap = f"{self._name}.splits"
            self._exchange.write(self.done.overlap, self._overlap.to_bytes())
        return self.done
