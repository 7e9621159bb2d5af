"""The task that reads a part of the source: it profiles the columns, and writes sorted runs.

It leaves one document in the exchange when it is done, so that work is not done twice after the
step was killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data import split_rules, weights
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile, profile
from kfp_tfjob.components.prepare_data.columns_to_rows import Converter, Rows
from kfp_tfjob.components.prepare_data.dictionary import Bins, Dictionary, TooManyTextsError
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.fit_encoding import counted_for
from kfp_tfjob.components.prepare_data.hashes import row_hashes, split_of
from kfp_tfjob.components.prepare_data.job import Job, job_of
from kfp_tfjob.components.prepare_data.kinds import columns_of
from kfp_tfjob.components.prepare_data.sorted_rows import GROUPS, RunWriter
from kfp_tfjob.components.prepare_data.source.files import SourceFile
from kfp_tfjob.components.prepare_data.source.header import Columns, choose
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable, Chunk
from kfp_tfjob.components.prepare_data.source.readers.registry import Part, open_table
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.vocabulary import Vocabulary
from kfp_tfjob.features.types.base import CODES
from kfp_tfjob.options.data import EVERY_COLUMN
from kfp_tfjob.storage.errors import DataError, Problem


def document(job: str, part: int) -> str:
    """Return the name of what the task has found in a part."""
    return f"{job}/rows-{part:06d}"


@dataclass
class PartDone:
    """What a task has found in a part.

    Attributes:
        reached: How far a range of a text was read: its start, its end, and its lines.
        seen: The counts of each column, as plain values; None if the kinds are known.
        lost: A category that has too many texts for one; then nothing else is known.
        runs: The names of the runs.
        faults: The bad rows.
        vocabulary: The labels.
        dictionaries: The texts of each category.
        counted: What `fit_encoding.Counted` has, for each group of rows, as plain values.
        overlap: The name of what `split_overlap` counts.
    """

    reached: tuple[int, int, int] | None = None
    seen: list[Any] | None = None
    lost: str | None = None
    runs: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary(""))
    dictionaries: list[Dictionary] = field(default_factory=list)
    counted: list[Any] = field(default_factory=list)
    overlap: str | None = None


def rows(context: Context, item: tuple[str, Part]) -> int:
    """Write the rows of one part as sorted runs.

    Args:
        context: Where everything is.
        item: The name of the job, and the part.

    Returns:
        The rows; 0 if a category has too many texts.
    """
    job, part = job_of(context, item[0]), item[1]
    found = _Found(job, context, part)
    try:
        reached = _read(job, part, found)
    except _LostError as error:
        lost = PartDone(lost=error.name)
        context.exchange.write_plain(document(job.name, part.number), lost)
        return 0
    context.exchange.write_plain(document(job.name, part.number), found.done(reached))
    return found.faults.seen


class _Beside(NamedTuple):
    """What columns beside the features say of each row: its split and its weight, if anything."""

    splits: np.ndarray | None
    weights: np.ndarray | None

    def of(self, keep: np.ndarray) -> _Beside:
        """Return the rows of a mask."""
        return _Beside(*(None if found is None else found[keep] for found in self))


class _LostError(Exception):
    """A column has too many texts for a category."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Reader:
    """Opens the files of one part, and checks that they have the columns of the first file."""

    def __init__(self, job: Job, part: Part) -> None:
        self._job, self._part = job, part
        self.reached: tuple[int, int, int] | None = None

    def tables(self) -> Iterator[tuple[SourceFile, ArrowTable, Columns]]:
        """Yield each file as a table, with the columns to read."""
        job, span = self._job, self._part.span
        for file in job.source.files[self._part.first : self._part.last + 1]:
            with open_table(job.source, file, job.options, job.block, span) as table:
                columns, problems = choose(table.names, job.label, job.options, file.name)
                problems += table.problems(columns) if columns else []
                if columns and set(columns.features) != set(job.columns.features):
                    problems.append(_other_columns(job, file.name, columns))
                DataError.raise_if(problems)
                assert columns is not None
                wanted = Columns(job.features, job.label, extra=columns.extra)
                yield file, table, wanted
                if span and self._part.is_text:
                    self.reached = table.reached


def _other_columns(job: Job, name: str, columns: Columns) -> Problem:
    others = job.columns.features
    more = sorted(set(columns.features) - set(others))
    fewer = sorted(set(others) - set(columns.features))
    return Problem(
        f"{name} does not have the columns of {job.source.files[0].name}",
        received="; ".join(
            f"{kind} {', '.join(map(repr, names[:10]))}"
            for kind, names in (("additional", more), ("missing", fewer))
            if names
        ),
        expected="the same columns in every file, in any order",
        fix="list the features in data_options.columns, or drop the columns that some files lack"
        " with data_options.drop",
    )


class _Found:
    """What a part has: runs in the exchange, labels, faults and counts."""

    def __init__(self, job: Job, context: Context, part: Part) -> None:
        self._job, self._exchange = job, context.exchange
        self._name = document(job.name, part.number)
        if part.span and part.span.exact:
            # Another run of the same dataset may still read the part from where it was guessed to
            # begin, and must not replace these rows.
            self._name += f"-from-{part.span.start}"
        self.faults, self.vocabulary = Faults(), Vocabulary(job.label)
        kinds = job.kinds
        self.texts: dict[str, Dictionary | Bins] = {
            item.name: Bins(job.options.hash_bins) if item.type.is_hashed else Dictionary()
            for item in kinds.in_field(CODES)
        }
        self.hashed = kinds.hashed
        self._runs = RunWriter(
            context.exchange, self._name, job.row_kind, job.edges, len(self.hashed)
        )
        self._counted = [counted_for(kinds) for _ in range(GROUPS)]
        self._overlap = split_rules.OverlapWriter() if job.split_rules.is_needed else None
        self.seen = {name: ColumnProfile(name) for name in job.columns.features}

    def add(
        self,
        rows: Rows,
        hashes: np.ndarray,
        beside: _Beside,
        codes: np.ndarray,
    ) -> None:
        """Add the good rows of a chunk.

        Args:
            rows: The rows.
            hashes: Their hashes.
            beside: Their splits and weights.
            codes: The codes of their texts.
        """
        job = self._job
        if beside.splits is not None:
            placed = job.split_rules.place(hashes, beside.splits)
            if self._overlap:
                self._overlap.add(hashes, split_of(placed, job.fractions))
            hashes = placed
        self.faults.add(rows.faults)
        split = split_of(hashes, job.fractions)
        labels, numbers = self.vocabulary.add(rows, split)
        found: Any = np.empty(len(hashes), job.row_kind)
        found["hash"], found["code"], found["number"] = hashes, labels, numbers
        np.add(rows.features, np.float32(0), out=found["features"])  # -0.0 is 0.0
        found["codes"], found["dates"] = codes, rows.dates
        if beside.weights is not None:
            found["weight"] = beside.weights
        if any(counted.is_needed for counted in self._counted):
            train, other = found[split == 0], np.isnan(numbers[split == 0])
            for counted, mask in zip(self._counted, (~other, other), strict=True):
                counted.add(train if mask.all() else train[mask])
        self._runs.add(found, self._raw(rows, split))

    def _raw(self, rows: Rows, split: np.ndarray) -> list[pa.Array]:
        """Return the texts of test, whose shards have only their bins; null for other rows."""
        mask = split == SPLITS.index("test")
        found = []
        for name, column in zip(self.texts, rows.texts, strict=True):
            if name in self.hashed:
                places = pa.array(column.codes, mask=~mask)
                found.append(pa.array(["", *column.texts], pa.string()).take(places))
        return found

    def done(self, reached: tuple[int, int, int] | None) -> PartDone:
        """Write what is left, and return the document."""
        self._runs.flush()
        shared = None
        if self._overlap:
            shared = f"{self._name}.splits"
            self._exchange.write(shared, self._overlap.to_bytes())
        return PartDone(
            reached,
            [it.to_plain() for it in self.seen.values()] if self._job.assumed else None,
            None,
            self._runs.names,
            self.faults,
            self.vocabulary,
            [found for found in self.texts.values() if isinstance(found, Dictionary)],
            [counted.to_plain() for counted in self._counted],
            shared,
        )


def _converter(job: Job) -> Converter:
    return Converter(job.kinds, job.label, job.options.format_of(job.label))


def _read(job: Job, part: Part, found: _Found) -> tuple[int, int, int] | None:
    """Add the rows of a part; return how far a range of a text was read."""
    reader, converter = _Reader(job, part), _converter(job)
    for file, table, columns in reader.tables():
        columns = columns_of(job.kinds, columns.label, columns.extra)
        if job.assumed:  # those that may be left out, too
            columns = replace(columns, features=job.columns.features)
        for chunk in table.chunks(columns):
            chunk.faults.dropping = _dropping(job, chunk)
            splits = job.split_rules.splits(file, chunk) if job.split_rules.is_needed else None
            weight = job.options.weight
            beside = _Beside(splits, None if weight is None else weights.read(chunk, weight))
            if job.assumed:
                profile(found.seen, chunk)
            rows = converter.rows(chunk)
            codes, hashed = _coded(rows, found.texts)
            hashes = row_hashes(rows.features, job.options.split.salt, hashed, rows.dates)
            found.add(rows, hashes, beside.of(chunk.faults.good), codes)
    return reader.reached


def _dropping(job: Job, chunk: Chunk) -> frozenset[str]:
    """Return the columns whose gaps leave a row out."""
    missing = job.options.missing
    named = {name for name, gaps in missing.items() if gaps.rule == "drop"}
    if EVERY_COLUMN in named:
        named |= chunk.columns.keys() - missing.keys() - {job.label, job.options.weight}
    return frozenset(named)


def _coded(rows: Rows, texts: Mapping[str, Dictionary | Bins]) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the texts, int32 of shape [rows, texts], and their hashes, uint64."""
    codes = np.empty((len(rows.lines), len(texts)), np.int32)
    hashes = np.empty((len(rows.lines), len(texts)), np.uint64)
    for j, ((name, coder), column) in enumerate(zip(texts.items(), rows.texts, strict=True)):
        try:
            codes[:, j], hashes[:, j] = coder.add(column)
        except TooManyTextsError:
            raise _LostError(name) from None
    return codes, hashes
