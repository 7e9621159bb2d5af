"""Reads the source, part by part: determines the kinds, sorts the rows, and counts labels.

The source is read once, with the kinds of columns that its first block suggests. All values are
counted on the way; if they show other kinds, the rows are read again. What the parts have is merged
in the order of the source, so it does not depend on who read them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data import crossing
from kfp_tfjob.components.prepare_data import kinds as columns_kinds
from kfp_tfjob.components.prepare_data.dictionary import (
    Dictionary,
    TooManyTextsError,
    too_large,
)
from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.executors.executor import Executor, Recipe
from kfp_tfjob.components.prepare_data.executors.inline import Inline
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.header import choose, no_rows
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.kinds import Kinds, LeftOut
from kfp_tfjob.components.prepare_data.learned import Counted, counted_for
from kfp_tfjob.components.prepare_data.parts import PART_BYTES, Part, parts_of
from kfp_tfjob.components.prepare_data.placing import folder_problems, time_limits
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.readers.reach import Span
from kfp_tfjob.components.prepare_data.readers.tables import open_table
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.runs import GROUPS, Run
from kfp_tfjob.components.prepare_data.seen import Seen, merge
from kfp_tfjob.components.prepare_data.source import first_kinds
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.tasks import LOOK, ROWS, document
from kfp_tfjob.components.prepare_data.vocabulary import Label, Vocabulary
from kfp_tfjob.options.data import IMPUTING, DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.coding import CATEGORY, NUMBER, TEXT

_TASKS = "kfp_tfjob.components.prepare_data.tasks"
_VERBS = {LOOK: "looked at", ROWS: "read"}

log = logging.getLogger(__name__)


@dataclass
class Scan:
    """The result of reading the source.

    Attributes:
        job: What was read, and how.
        executor: Has read the source.
        kinds: The kinds of the features, and the columns that were left out.
        faults: The bad rows.
        vocabulary: The labels of the good rows.
        counted: What rows of train say, for rows with a number as label and for others.
        dictionaries: The texts of each category, by name.
        runs: The good rows.
        label_codes: For each part, the code in `vocabulary` of each of its labels.
        text_codes: For each part and column of texts, the code of each of its texts; None if
            codes mean the same everywhere.
    """

    job: Job
    executor: Executor
    kinds: Kinds
    faults: Faults
    vocabulary: Vocabulary
    counted: list[Counted]
    dictionaries: dict[str, Dictionary]
    runs: list[Run]
    label_codes: list[np.ndarray]
    text_codes: list[list[np.ndarray | None]]
    shared: list[str]

    @property
    def exchange(self) -> Exchange:
        """Where the runs are."""
        return self.executor.context.exchange

    @property
    def columns(self) -> Columns:
        """The features and the label."""
        return Columns(self.job.features, self.job.label, extra=self.job.columns.extra)

    @property
    def split_rule(self) -> dict[str, Any]:
        """What decides about the split besides salt and fractions."""
        return self.job.placing.rule

    def also_in_train(self) -> dict[str, int] | None:
        """Return the rows of validation and test whose features are in train.

        None if there are none, because equal rows stay together.
        """
        return crossing.count(self.exchange, self.shared) if self.job.placing.is_needed else None

    def rows(self, label: Label) -> dict[str, int]:
        """Return the number of good rows in each split, given the label."""
        counts = self.vocabulary.number_rows.copy()
        if label.classes is not None:
            counts += self.vocabulary.text_rows
        return dict(zip(SPLITS, counts.tolist(), strict=True))


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
    executor = executor or Inline(Recipe(str(folder)), source.store)
    reading = _Reading(source, data_label, options, executor)
    limits: tuple[float, ...] = ()
    if options.split.time:
        limits = tuple(time_limits(source, options, folder, block).tolist())
    job = Job(source, data_label, options, reading.columns(block), None, limits, block)
    DataError.raise_if(folder_problems(source, options))
    reading.parts = parts_of(source, options, part)
    kinds = reading.first_kinds(job)
    if kinds is None and _may_be_plain(options):
        try:
            return reading.rows(job)
        except _NotPlainError:
            pass
    assumed = kinds is not None
    while True:
        kinds = kinds or reading.kinds(job)
        if not kinds.features:
            raise DataError(_no_feature(source.files[0].name, kinds))
        try:
            return reading.rows(replace(job, kinds=kinds, assumed=assumed))
        except _OtherKindsError as error:
            kinds, assumed = error.kinds, False


class _NotPlainError(Exception):
    """The source is not a table of numbers without a gap, or has bad rows."""


class _OtherKindsError(Exception):
    """The rows show that the kinds are others.

    Args:
        kinds: The kinds; None if they are not known.
    """

    def __init__(self, kinds: Kinds | None) -> None:
        super().__init__(kinds)
        self.kinds = kinds


def _may_be_plain(options: DataOptions) -> bool:
    """Tell whether the options ask for nothing that a table of numbers does not have."""
    imputed = any(gaps.rule in IMPUTING for gaps in options.missing.values())
    return not imputed and not set(options.types.values()) - {NUMBER}


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
        self._nulls = pa.array(sorted({*options.null_values, ""}))
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
            return columns

    def first_kinds(self, job: Job) -> Kinds | None:
        """Return the kinds that the first block suggests; None if they are no good guess."""
        try:
            found = first_kinds(self._source, self._label, self._options)
        except DataError:
            return None  # the tasks say where
        known = {item.name for item in (*found.features, *found.left_out)}
        usable = found.features and not found.plain and known == set(job.columns.features)
        return found if usable else None

    def kinds(self, job: Job) -> Kinds:
        """Read the source for the kinds of its columns.

        Raises:
            DataError: The kind of a column is unclear.
        """
        seen = self._nothing(job)
        for found, lines in self._read(job, LOOK):
            self._look(seen, found, lines)
        return self._decide(seen)

    def _nothing(self, job: Job) -> dict[str, Seen]:
        return {name: Seen(name, self._nulls) for name in job.columns.features}

    def _look(self, seen: dict[str, Seen], found: dict[str, Any], lines: int) -> None:
        """Add the counts of the next part."""
        later = [Seen.from_plain(plain, self._nulls) for plain in found["seen"]]
        for column in later:
            column.shift(lines)
        merge(seen, {column.name: column for column in later})

    def _decide(self, seen: dict[str, Seen]) -> Kinds:
        kinds, problems = columns_kinds.decide(seen.values(), self._options)
        DataError.raise_if(problems)
        for line in columns_kinds.described(kinds):
            log.info("%s", line)
        return kinds

    def rows(self, job: Job) -> Scan:
        """Sort the rows.

        Raises:
            _NotPlainError: No kinds are given, and there is more than numbers.
            _OtherKindsError: Some columns are no features after all, or of another kind than
                assumed.
            DataError: The kind of a column is unclear.
        """
        kinds = job.kinds or columns_kinds.of_numbers(job.columns.features, self._options)
        texts = kinds.of(CATEGORY, TEXT)
        seen = self._nothing(job)
        scan = Scan(
            job,
            self._executor,
            kinds,
            Faults(),
            Vocabulary(self._label),
            [counted_for(kinds) for _ in range(GROUPS)],
            {name: Dictionary() for name in kinds.of(CATEGORY)},
            *([], [], [], []),
        )
        for number, (found, lines) in enumerate(self._read(job, ROWS)):
            if "lost" in found:
                raise self._lost(scan, *found["lost"])
            if not found["plain"]:
                raise _NotPlainError
            if job.assumed:
                self._look(seen, found, lines)
            self._merge(scan, number, found, lines, texts)
        if job.assumed:
            scan = self._proven(scan, seen)
        lost = [
            LeftOut(name, columns_kinds.ALL_DIFFERENT)
            for name, dictionary in scan.dictionaries.items()
            if dictionary.rows >= columns_kinds.FEWEST_IDS
            and dictionary.all_different
            and not columns_kinds.is_wanted(name, self._options)
        ]
        if lost:
            raise _OtherKindsError(scan.kinds.without(lost))
        return scan

    def _proven(self, scan: Scan, seen: dict[str, Seen]) -> Scan:
        """Return a scan with the kinds by all values; the assumed ones must be like them."""
        kinds = self._decide(seen)
        if not kinds.is_like(scan.kinds):
            log.info("the first rows suggest other kinds than all rows, so these are read again")
            raise _OtherKindsError(kinds)
        job = replace(scan.job, kinds=kinds, assumed=False)
        self._exchange.write_plain(f"{job.name}/job", job.to_plain())
        return replace(scan, job=job, kinds=kinds)

    def _lost(self, scan: Scan, name: str, reason: str) -> Exception:
        """Return the error for a category with too many texts."""
        if scan.job.assumed:
            return _OtherKindsError(None)
        if columns_kinds.is_wanted(name, self._options):
            return DataError(columns_kinds.too_many(name, reason))
        return _OtherKindsError(scan.kinds.without([LeftOut(name, reason)]))

    def _merge(
        self, scan: Scan, part: int, found: dict[str, Any], lines: int, texts: tuple[str, ...]
    ) -> None:
        """Add what the next part has."""
        faults, vocabulary = map(
            lambda kind, key: kind.from_plain(found[key]),
            (Faults, Vocabulary),
            ("faults", "vocabulary"),
        )
        faults.shift(lines)
        vocabulary.shift(lines)
        scan.faults.merge(faults)
        scan.label_codes.append(scan.vocabulary.merge(vocabulary))
        dictionaries = iter(found["dictionaries"])
        codes: list[np.ndarray | None] = []
        for name in texts:
            if name not in scan.dictionaries:
                codes.append(None)
                continue
            later = Dictionary.from_plain(next(dictionaries))
            try:
                codes.append(scan.dictionaries[name].merge(later))
            except TooManyTextsError:
                raise self._lost(scan, name, columns_kinds.TOO_MANY_TEXTS) from None
        if problem := too_large(scan.dictionaries):
            raise _OtherKindsError(None) if scan.job.assumed else DataError(problem)
        scan.text_codes.append(codes)
        if not scan.kinds.plain:
            for counted, plain in zip(scan.counted, found["counted"], strict=True):
                counted.merge(Counted.from_plain(plain), codes)
        scan.runs += [Run.read(self._exchange, name, part) for name in found["runs"]]
        if found["crossing"]:
            scan.shared.append(found["crossing"])

    def _read(self, job: Job, task: str) -> Iterator[tuple[dict[str, Any], int]]:
        """Run a task over all parts, unless an earlier try did.

        Yields:
            For each part what it has, and the lines of its file before it.
        """
        self._exchange.write_plain(f"{job.name}/job", job.to_plain())
        known = set(self._exchange.names(job.name))
        progress = ProgressLog(_VERBS[task], self._source.size)
        names = {part.number: document(job.name, task, part.number) for part in self.parts}
        missing = [part for part in self.parts if names[part.number] not in known]
        if done := len(self.parts) - len(missing):
            log.info("%s of %s parts are there from an earlier try", done, len(self.parts))
        finished = self._map(job, task, missing)
        ended = lines = 0
        waiting = {part.number for part in missing}
        for part in self.parts:
            while part.number in waiting:
                done, rows = next(finished)
                waiting.discard(done.number)
                progress.add(rows, done.size)
            found = self._exchange.read_plain(names[part.number])
            if part.follows and found.get("reached") and found["reached"][0] != ended:
                # A quoted value goes on over the boundary, so the first record was guessed wrong.
                again = replace(part, span=Span(ended, part.span.end, exact=True))
                for _ in self._map(job, task, [again]):
                    pass
                found = self._exchange.read_plain(names[part.number])
            lines = lines if part.follows else 0
            yield found, lines
            if found.get("reached"):
                ended = found["reached"][1]
                lines += found["reached"][2]
        progress.log()

    def _map(self, job: Job, task: str, parts: list[Part]) -> Iterator[tuple[Part, int]]:
        """Run a task over parts; yield each part and its rows."""
        items = [[job.name, part.to_plain()] for part in parts]
        results = self._executor.map(f"{_TASKS}:{task}", items)
        for part, result in zip(parts, results, strict=True):
            yield part, sum(result)


def _no_feature(file: str, kinds: Kinds) -> Problem:
    return Problem(
        f"{file} has no column that a model can learn from",
        received="; ".join(f"{item.name!r}: {item.reason}" for item in kinds.left_out[:10]),
        expected="at least one feature",
        fix="name the kind of a column with data_options.types to keep it, or correct data_uri",
    )


def decide(scan: Scan, options: DataOptions) -> Label:
    """Determine the task and the classes of the label.

    Raises:
        DataError: There are more bad rows than the options allow, the label is unusable, a split
            has no rows, or train has no row of a class.
    """
    faults, vocabulary = scan.faults, scan.vocabulary
    if not faults.seen:
        raise DataError(no_rows())
    if faults.bad and (options.on_bad_row == "fail" or faults.bad == faults.seen):
        raise DataError(*faults.problems())
    label = vocabulary.decide(options.task)
    if label.classes is None and vocabulary.text_rows.any():
        rows = vocabulary.text_fault_rows()
        cells = {(label.name, rule): count for rule, count in rows.items()}
        faults.include(rows, cells, vocabulary.text_faults)
    if faults.bad and options.on_bad_row == "fail":
        raise DataError(*faults.problems())
    if faults.bad > options.max_bad_fraction * faults.seen:
        limit = Problem(
            "more rows are bad than data_options.max_bad_fraction allows",
            received=f"{faults.bad:,} of {faults.seen:,}, a fraction of"
            f" {faults.bad / faults.seen:.3g}",
            expected=f"at most {options.max_bad_fraction:g}",
            fix="correct the data, or raise data_options.max_bad_fraction",
        )
        raise DataError(limit, *faults.problems())
    if faults.bad:
        log.warning("%s", "\n  ".join(map(str, faults.problems())))
    _enough(scan, label, options)
    return label


def _enough(scan: Scan, label: Label, options: DataOptions) -> None:
    """Refuse data that leaves a split without rows, or train without a row of a class."""
    rows, vocabulary = scan.rows(label), scan.vocabulary
    rule = ", ".join(f"{key} {value!r}" for key, value in scan.split_rule.items())
    shown = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    if not all(rows.values()):
        raise DataError(
            Problem(
                "a split has no rows",
                received=f"{shown}, with the fractions {options.split.fractions}"
                + (f", divided by {rule}" if rule else ""),
                expected="rows in train, validation and test",
                fix="provide rows for it, or let the hash of the rows divide them: see"
                " data_options.split"
                if rule
                else "provide more rows, larger fractions or a different data_options.split.salt;"
                " rows with equal features always go to the same split",
            )
        )
    if label.classes is None:
        return
    by_class = vocabulary.class_counts(label)
    lacking = [
        f"{name!r} ({total:,} rows)"
        for name, train, total in zip(label.classes, by_class[0], by_class.sum(0), strict=True)
        if not train
    ]
    if lacking:
        raise DataError(
            Problem(
                f"train has no row of {len(lacking)} of the {len(label.classes)} classes of"
                f" {label.name!r}",
                received=listed(lacking, 10),
                expected="rows of every class in train",
                fix="provide more of these rows, leave them out, use a different"
                ' data_options.split.salt, or set data_options.task to "regression" if the label'
                " is a number",
            )
        )
