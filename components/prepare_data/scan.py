"""Reads the source, part by part: determines the kinds, writes bucket files, and counts labels.

    first block ─► kinds, a guess ─► a task for each part ─► merged ─► kinds by all values
                                              ▲                            │ give other rows
                                              └────────────────────────────┘

A task converts the rows by these kinds, and counts all values by their form. If the merged counts
show other kinds, the rows are read again. What the parts have is merged in the order of the source,
so it does not depend on who read them. Called by prepare_data's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.options.data import AUTO, DataOptions
from kfp_tfjob.options.image_options import PATHS, PICTURE

from . import duplicate_rows, split_rules
from . import kinds as columns_kinds
from .dictionary import Dictionary, TooManyTextsError
from .duplicate_rows import Overlap
from .executors.executor import Executor, ProgressLog
from .faults import Faults
from .images.folders import LABEL
from .images.image_list import column_of_paths
from .kinds import Feature, Kinds, LeftOut, all_hashed
from .labels import Label, Labels
from .source.column_names import Columns
from .source.delimiter import with_delimiter
from .source.files import Source
from .source.readers.byte_range import BLOCK, Span
from .source.readers.open_table import PART_BYTES, Part, parts_of
from .source.resolve import first_block
from .tasks import Job, RowSummary

_TASK = "kfp_tfjob.components.prepare_data.tasks:rows"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """The result of reading the source.

    Attributes:
        summary: Of all rows.
    """

    job: Job
    executor: Executor
    summary: RowSummary

    @property
    def labels(self) -> Labels:
        """The labels of all rows."""
        return self.summary.labels

    @property
    def faults(self) -> Faults:
        """The invalid rows."""
        return self.summary.faults

    @property
    def dictionaries(self) -> dict[str, Dictionary]:
        """The strings of the categories."""
        return self.summary.dictionaries

    @property
    def kinds(self) -> Kinds:
        """The kinds of the features, and the columns that were omitted."""
        return self.job.kinds

    def overlap(self) -> Overlap | None:
        """Return the rows with features of rows in other splits; None if there cannot be any."""
        return (
            duplicate_rows.count_overlap(self.executor.context.buckets, self.summary.overlaps)
            if self.job.split_rules.is_needed
            else None
        )

    def rows(self, label: Label) -> dict[str, int]:
        """Return the number of good rows in each split, given the label."""
        counts = self.labels.number_rows.copy()
        if label.classes is not None:
            counts += self.labels.text_rows
        return dict(zip(SPLITS, counts.tolist(), strict=True))

    def proven(self) -> Kinds:
        """Return the kinds by all values.

        Raises:
            DataError: The column type is unclear, or it has too many strings.
        """
        kinds, options = self.job.kinds, self.job.options
        if self.job.assumed:
            decided, problems = columns_kinds.decide(
                self.summary.seen.values(), options, self.dictionaries
            )
            DataError.raise_if(problems)
            if self.job.columns.has_index:
                decided = decided.without([LeftOut("", columns_kinds.INDEX)])
            for line in columns_kinds.described(decided):
                log.info("%s", line)
            return decided
        lost = []
        for name, reason in columns_kinds.odd_dictionaries(self.dictionaries).items():
            if not columns_kinds.is_wanted(name, options):
                lost.append(LeftOut(name, reason))
            elif reason == columns_kinds.TOO_MANY_TEXTS:
                raise DataError(columns_kinds.too_many(name))
        return kinds.without(lost) if lost else kinds


def read(
    source: Source,
    label: str,
    options: DataOptions,
    executor: Executor,
    block: int = BLOCK,
    part: int = PART_BYTES,
) -> Scan:
    """Read the source, in parts and blocks of about so many bytes.

    Raises:
        DataError: A file cannot be read, or does not have the expected columns, or the kind of a
            column is unclear.
    """
    if source.pictures:
        return _read_images(source, label, options, executor, part)
    if options.delimiter == AUTO:
        options = with_delimiter(source, options)
        if options.separator != ",":
            log.info("the delimiter of %s is %r", source.first.name, options.delimiter)
    columns, kinds, problems = first_block(source, label, options)
    if columns is None:
        raise DataError(*problems)
    limits: tuple[float, ...] = ()
    if options.split.time:
        limits = tuple(
            split_rules.time_limits(source, options, executor.context.folder, block).tolist()
        )
    job = Job(source, label, options, columns, limits=limits, block=block)
    DataError.raise_if(split_rules.folder_problems(source, options))
    padded = kinds.padded
    parts = parts_of(source, options, part)
    # All values show whether the kinds are right. Later rows may have missing ones.
    decided = {item.name for item in (*kinds.features, *kinds.left_out)}
    if not kinds.features or decided != set(columns.features):
        kinds = all_hashed(columns.features)
    else:
        kinds = kinds.with_rules(options)
    job = replace(job, kinds=kinds, assumed=True)
    while True:
        job = replace(job, name=uuid4().hex)  # an earlier try of the step may still write its rows
        try:
            scan = _rows(executor, job, parts)
        except TooManyTextsError:
            if not job.assumed:
                raise
            executor.context.buckets.clear(job.name)
            job = replace(job, kinds=all_hashed(columns.features))  # not all may be categories
            continue
        kinds = scan.proven()
        if not kinds.features:
            raise DataError(_no_feature(source, label, kinds, options))
        if kinds.give_rows_of(job.kinds):
            kinds = replace(kinds, padded=padded)
            return replace(scan, job=replace(scan.job, kinds=kinds, assumed=False))
        log.info(
            "later rows have different column types from the first ones, so all rows are read again"
        )
        executor.context.buckets.clear(job.name)
        job = replace(job, kinds=kinds, assumed=False)


def _read_images(
    source: Source, label: str, options: DataOptions, executor: Executor, part: int
) -> Scan:
    """Read images, whose columns are known."""
    assert source.pictures
    for note in source.pictures.notes:
        log.warning("%s", note)
    label = label.strip() or LABEL
    kinds = Kinds((Feature(PICTURE, PICTURE, None, 0),), ())
    job = Job(source, label, options, Columns((PICTURE,), label), kinds, name=uuid4().hex)
    DataError.raise_if(split_rules.folder_problems(source, options))
    scan = _rows(executor, job, parts_of(source, options, part))
    if source.pictures.faults:
        scan.faults.merge(source.pictures.faults)
    return scan


def _rows(executor: Executor, job: Job, parts: Sequence[Part]) -> Scan:
    """Read the rows of all parts, and write the bucket files."""
    summary = RowSummary.empty(job)
    for part_summary, lines in _parts_done(executor, job, parts):
        summary.merge(part_summary, lines)
    return Scan(job, executor, summary)


def _parts_done(
    executor: Executor, job: Job, parts: Sequence[Part]
) -> Iterator[tuple[RowSummary, int]]:
    """Read all parts; yield the summary of each, and its file's lines before it."""
    progress = ProgressLog("read", job.source.size)
    summaries = executor.map(_TASK, job, parts)
    ended = lines = 0
    for part, summary in zip(parts, summaries, strict=True):
        if part.follows and summary.reached and summary.reached[0] != ended:
            # A quoted value crosses the boundary, so the first record was guessed wrong.
            assert part.span
            for file in summary.files:
                executor.context.buckets.delete(file.streams.name)
            again = replace(part, span=Span(ended, part.span.end, exact=True))
            (summary,) = executor.map(_TASK, job, [again])
        lines = lines if part.follows else 0
        progress.add(summary.faults.seen, part.size)
        yield summary, lines
        if summary.reached:
            ended = summary.reached[1]
            lines += summary.reached[2]
    progress.log()


def _no_feature(source: Source, label: str, kinds: Kinds, options: DataOptions) -> Problem:
    """Describe a table without features, although one column may have paths of images."""
    fix = "set a column's type in data_options.types to keep it"
    types = ""
    if name := column_of_paths(source, label, [item.name for item in kinds.left_out], options):
        types = options.types_with({name: PATHS})
        fix = (
            f"set data_options.types={types} if {name!r} has the paths of images; otherwise, {fix}"
        )
    return Problem(
        f"{source.first.name} has no column that a model can learn from",
        received="; ".join(f"{item.name!r}: {item.reason}" for item in kinds.left_out[:10]),
        expected="at least one feature",
        fix=f"{fix}, or correct data_uri",
        name="no-features",
        path="data_options.types" if types else "",
        suggestion=types,
    )
