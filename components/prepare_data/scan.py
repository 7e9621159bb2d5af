"""Reads the source, part by part: determines the kinds, sorts the rows, and counts labels.

The source is read once, with the kinds of columns that its first block suggests, or as hashed
strings, which take any value. All values are counted on the way; if they show other kinds, the rows
are read again. What the parts have is merged
in the order of the source, so it does not depend on who read them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from kfp_tfjob.components.prepare_data import kinds as columns_kinds
from kfp_tfjob.components.prepare_data import part_documents
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile, merge
from kfp_tfjob.components.prepare_data.executors.executor import Context, Executor, Inline
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.kinds import Kinds, all_hashed
from kfp_tfjob.components.prepare_data.scanned import OtherKindsError, Scan
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.source.header import Columns, choose
from kfp_tfjob.components.prepare_data.source.readers.registry import (
    PART_BYTES,
    Part,
    open_table,
    parts_of,
)
from kfp_tfjob.components.prepare_data.source.resolve import first_kinds
from kfp_tfjob.components.prepare_data.split_rules import folder_problems, time_limits
from kfp_tfjob.components.prepare_data.tasks import PartDone
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

log = logging.getLogger(__name__)


def read(
    source: Source,
    data_label: str,
    options: DataOptions,
    folder: Path,
    block: int,
    executor: Executor | None = None,
    part: int = PART_BYTES,
) -> Scan:
    """Read the source.

    Args:
        source: The files.
        data_label: The label column.
        options: The typed `data_options`.
        folder: A folder on local disk.
        block: Bytes of text to parse at a time.
        executor: Runs the tasks; None to run them here, with `folder` as the exchange.
        part: About the bytes of a part.

    Raises:
        DataError: A file cannot be read, or does not have the expected columns, or the kind of a
            column is unclear.
    """
    executor = executor or Inline(Context(str(folder), opened=source.store))
    reading = _Reading(source, data_label, options, executor)
    limits: tuple[float, ...] = ()
    if options.split.time:
        limits = tuple(time_limits(source, options, folder, block).tolist())
    job = Job(source, data_label, options, reading.columns(block), limits=limits, block=block)
    DataError.raise_if(folder_problems(source, options))
    reading.parts = parts_of(source, options, part)
    # Hashed strings take any value. Whether the kinds are right, all values show.
    kinds, assumed = reading.first_kinds(job) or all_hashed(job.columns.features), True
    while True:
        if not kinds.features:
            raise DataError(_no_feature(source.files[0].name, kinds))
        try:
            return reading.rows(replace(job, kinds=kinds, assumed=assumed))
        except OtherKindsError as error:
            kinds, assumed = error.kinds, error.assumed


class _Reading:
    """Reads a source, several times if need be; the arguments are those of `read`."""

    def __init__(
        self,
        source: Source,
        data_label: str,
        options: DataOptions,
        executor: Executor,
    ) -> None:
        self._source, self._label, self._options = source, data_label, options
        self._executor, self._exchange = executor, executor.context.exchange
        self.parts: list[Part] = []

    def columns(self, block: int) -> Columns:
        """Return the columns of the first file.

        Raises:
            DataError: It cannot be read, or has no such columns.
        """
        file = self._source.files[0]
        with open_table(self._source, file, self._options, block) as table:
            columns, problems = choose(table.names, self._label, self._options, file.name)
            DataError.raise_if(problems + (table.problems(columns) if columns else []))
            assert columns  # or there was a problem
            return columns

    def first_kinds(self, job: Job) -> Kinds | None:
        """Return the kinds that the first block suggests; None if they are no good guess."""
        try:
            found = first_kinds(self._source, self._label, self._options)
        except DataError:
            return None  # the tasks say where
        known = {item.name for item in (*found.features, *found.left_out)}
        usable = found.features and known == set(job.columns.features)
        return found if usable else None

    def _nothing(self, job: Job) -> dict[str, ColumnProfile]:
        """Return the counts of no values."""
        return {name: ColumnProfile(name) for name in job.columns.features}

    def _look(self, seen: dict[str, ColumnProfile], found: PartDone, lines: int) -> None:
        """Add the counts of the next part."""
        later = [ColumnProfile.from_plain(plain) for plain in found.seen or ()]
        for column in later:
            column.shift(lines)
        merge(seen, {column.name: column for column in later})

    def _decide(self, seen: dict[str, ColumnProfile]) -> Kinds:
        """Return the kinds by all values.

        Raises:
            DataError: The kind of a column is unclear.
        """
        kinds, problems = columns_kinds.decide(seen.values(), self._options)
        DataError.raise_if(problems)
        for line in columns_kinds.described(kinds):
            log.info("%s", line)
        return kinds

    def rows(self, job: Job) -> Scan:
        """Sort the rows.

        Raises:
            OtherKindsError: Some columns are no features after all, or of another kind than
                assumed.
            DataError: The kind of a column is unclear.
        """
        seen = self._nothing(job)
        scan = Scan.empty(job, self._executor)
        for found, lines in part_documents.read(self._executor, job, self.parts):
            scan.merge(found, lines)
            if job.assumed:
                self._look(seen, found, lines)
                if kinds := columns_kinds.with_rules(job.kinds, seen, self._options):
                    log.info("only later rows have missing values, so the rows are read again")
                    raise OtherKindsError(kinds, assumed=True)
        if job.assumed:
            scan = self._proven(scan, seen)
        if lost := scan.identifiers:
            raise OtherKindsError(scan.kinds.without(lost))
        return scan

    def _proven(self, scan: Scan, seen: dict[str, ColumnProfile]) -> Scan:
        """Return a scan with the kinds by all values; the assumed ones must be like them."""
        kinds = self._decide(seen)
        if not kinds.is_like(scan.kinds):
            log.info(
                "all rows suggest other column types than the first ones, so they are read again"
            )
            raise OtherKindsError(kinds)
        job = replace(scan.job, kinds=kinds, assumed=False)
        self._exchange.write_plain(f"{job.name}/job", job)
        return replace(scan, job=job, kinds=kinds)


def _no_feature(file: str, kinds: Kinds) -> Problem:
    """Describe a table whose columns are all left out."""
    return Problem(
        f"{file} has no column that a model can learn from",
        received="; ".join(f"{item.name!r}: {item.reason}" for item in kinds.left_out[:10]),
        expected="at least one feature",
        fix="set a column's type in data_options.types to keep it, or correct data_uri",
    )
