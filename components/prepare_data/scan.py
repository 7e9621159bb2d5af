"""Reads the source: determines the kinds, writes rows to local disk by hash, and counts labels.

A table of numbers without a gap is read once. Any other table is read twice: the first pass
determines the kinds of its columns, the second one converts its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data import kinds as columns_kinds
from kfp_tfjob.components.prepare_data.arrow_table import ArrowTable, Chunk, numeric
from kfp_tfjob.components.prepare_data.convert import Converter
from kfp_tfjob.components.prepare_data.crossing import Crossing
from kfp_tfjob.components.prepare_data.dictionary import Bins, Dictionary, TooManyTextsError
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.header import choose, no_rows
from kfp_tfjob.components.prepare_data.kinds import Kinds, LeftOut
from kfp_tfjob.components.prepare_data.placing import Placing
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.rows import Columns, Rows
from kfp_tfjob.components.prepare_data.seen import Seen, see
from kfp_tfjob.components.prepare_data.spill import Spill, row_hashes, split_of
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.tables import open_table
from kfp_tfjob.components.prepare_data.text_spill import TextSpill
from kfp_tfjob.components.prepare_data.vocabulary import Label, Vocabulary
from kfp_tfjob.options.data import EVERY_COLUMN, IMPUTING, DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.coding import CATEGORY, DATE, NUMBER, TEXT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """The result of reading the source.

    Attributes:
        columns: The features and the label.
        kinds: The kinds of the features, and the columns that were left out.
        faults: The bad rows.
        vocabulary: The labels of the good rows.
        spill: The good rows, on local disk.
        dictionaries: The texts of each category, by name.
        texts: The texts of columns that are hashed, of the test split; None if there are none.
        split_rule: What decides about the split besides salt and fractions.
        crossing: The splits of equal rows, if not their hash decides.
    """

    columns: Columns
    kinds: Kinds
    faults: Faults
    vocabulary: Vocabulary
    spill: Spill
    dictionaries: dict[str, Dictionary] = field(default_factory=dict)
    texts: TextSpill | None = None
    split_rule: dict[str, Any] = field(default_factory=dict)
    crossing: Crossing | None = None

    def close(self) -> None:
        """Finish writing to local disk."""
        for item in (self.spill, self.texts, self.crossing):
            if item:
                item.close()

    def rows(self, label: Label) -> dict[str, int]:
        """Return the number of good rows in each split, given the label."""
        counts = self.vocabulary.number_rows.copy()
        if label.classes is not None:
            counts += self.vocabulary.text_rows
        return dict(zip(SPLITS, counts.tolist(), strict=True))


def read(source: Source, data_label: str, options: DataOptions, folder: Path, block: int) -> Scan:
    """Read the source.

    Args:
        source: The files.
        data_label: The label column.
        options: The typed `data_options`.
        folder: An empty folder on local disk, with room for all rows as numbers.
        block: Bytes of text to parse at a time.

    Raises:
        DataError: A file cannot be read, or does not have the expected columns, or the kind of a
            column is unclear.
    """
    reading = _Reading(source, data_label, options, folder, block)
    if _may_be_plain(options):
        try:
            return reading.numbers(None)
        except _NotPlainError:
            pass
    kinds = reading.kinds()
    while not kinds.plain:
        try:
            found = reading.rows(kinds)
        except _LeftOutError as error:
            kinds = kinds.without(error.lost)
        else:
            return found
    return reading.numbers(kinds)


class _NotPlainError(Exception):
    """The source is not a table of numbers without a gap, or has bad rows."""


class _LeftOutError(Exception):
    """Columns that must be left out, as only the rows show."""

    def __init__(self, lost: list[LeftOut]) -> None:
        super().__init__(lost)
        self.lost = lost


def _may_be_plain(options: DataOptions) -> bool:
    """Tell whether the options ask for nothing that a table of numbers does not have."""
    imputed = any(gaps.rule in IMPUTING for gaps in options.missing.values())
    return not imputed and not set(options.types.values()) - {NUMBER}


class _Reading:
    """Reads a source, several times if need be; the arguments are those of `read`."""

    def __init__(
        self, source: Source, data_label: str, options: DataOptions, folder: Path, block: int
    ) -> None:
        self._source, self._label, self._options = source, data_label, options
        self._folder, self._block = folder, block
        self._fractions = list(options.split.fractions.values())
        self._nulls = pa.array(sorted({*options.null_values, ""}))
        self._placing = Placing(source, options, folder, block)
        self._file = source.files[0]

    def numbers(self, kinds: Kinds | None) -> Scan:
        """Read a table of numbers.

        Args:
            kinds: The kinds, or None to find out whether every column is a number.

        Raises:
            _NotPlainError: `kinds` is None, and there is more than numbers.
        """
        scan: Scan | None = None
        progress = ProgressLog("read")
        try:
            for table, columns in self._tables(kinds):
                if scan is None:
                    spill = Spill(self._folder, len(columns.features))
                    vocabulary = Vocabulary(self._label)
                    known = kinds or columns_kinds.of_numbers(columns.features, self._options)
                    scan = self._scan(columns, known, vocabulary, spill)
                for rows, splits in self._number_rows(table, scan.columns, strict=kinds is None):
                    hashes = row_hashes(rows.features, self._options.split.salt)
                    hashes = self._placed(scan, hashes, splits)
                    self._add(scan, rows, hashes)
                    progress.add(rows.faults.seen, rows.size)
        finally:
            if scan:
                scan.close()
        progress.log()
        return scan

    def kinds(self) -> Kinds:
        """Read the source for the kinds of its columns.

        Raises:
            DataError: The kind of a column is unclear.
        """
        seen: dict[str, Seen] = {}
        progress = ProgressLog("looked at")
        for table, columns in self._tables(None):
            seen = seen or {name: Seen(name, self._nulls) for name in columns.features}
            text = Columns(tuple(seen), self._label, frozenset())
            for chunk in table.chunks(text):
                see(seen, chunk)
                progress.add(chunk.faults.seen, chunk.size)
        progress.log()
        found, problems = columns_kinds.decide(seen.values(), self._options)
        DataError.raise_if(problems)
        for line in columns_kinds.described(found):
            log.info("%s", line)
        return found

    def rows(self, kinds: Kinds) -> Scan:
        """Read a table with columns of any kind.

        Raises:
            _LeftOutError: Some columns are no features after all.
        """
        scan: Scan | None = None
        progress = ProgressLog("read")
        converter = Converter(kinds, self._label, self._nulls)
        texts = {
            item.name: Dictionary() if item.kind == CATEGORY else Bins(self._options.hash_bins)
            for item in kinds.features
            if item.kind in (CATEGORY, TEXT)
        }
        numbers = frozenset(kinds.of(NUMBER))
        try:
            for table, columns in self._tables(kinds):
                if scan is None:
                    dates = len(kinds.of(DATE))
                    others = len(kinds.features) - dates - len(texts)
                    spill = Spill(self._folder, others, len(texts), dates)
                    vocabulary = Vocabulary(self._label)
                    dictionaries = {name: texts[name] for name in kinds.of(CATEGORY)}
                    names = kinds.of(TEXT)
                    test = TextSpill(self._folder, names) if names else None
                    scan = self._scan(columns, kinds, vocabulary, spill, dictionaries, test)
                wanted = Columns(scan.columns.features, self._label, numbers, columns.extra)
                for chunk in table.chunks(wanted):
                    chunk.faults.dropping = self._dropping(chunk)
                    splits = self._splits(chunk)
                    rows = converter.rows(table, chunk)
                    codes, hashed = _coded(rows, texts)
                    salt = self._options.split.salt
                    hashes = row_hashes(rows.features, salt, hashed, rows.dates)
                    hashes = self._placed(
                        scan, hashes, None if splits is None else splits[chunk.faults.good]
                    )
                    self._add(scan, rows, hashes, codes)
                    if scan.texts:
                        mask = split_of(hashes, self._fractions) == SPLITS.index("test")
                        named = zip(texts, rows.texts, strict=True)
                        raw = [it.of(mask) for name, it in named if name in scan.texts.names]
                        scan.texts.add(hashes[mask], raw)
                    progress.add(rows.faults.seen, rows.size)
        finally:
            if scan:
                scan.close()
        progress.log()
        lost = [
            LeftOut(name, columns_kinds.ALL_DIFFERENT)
            for name, dictionary in scan.dictionaries.items()
            if dictionary.rows >= columns_kinds.FEWEST_IDS
            and dictionary.all_different
            and not columns_kinds.is_wanted(name, self._options)
        ]
        if lost:
            raise _LeftOutError(lost)
        return scan

    def _tables(self, kinds: Kinds | None) -> Iterator[tuple[ArrowTable, Columns]]:
        """Open the files one after the other, and check that they have the same columns."""
        first: Columns | None = None
        for file in self._source.files:
            with open_table(self._source, file, self._options, self._block) as table:
                columns, problems = choose(table.names, self._label, self._options, file.name)
                problems += table.problems(columns) if columns else []
                if first and columns and set(columns.features) != set(first.features):
                    name = self._source.files[0].name
                    problems.append(_other_columns(file.name, name, columns, first))
                DataError.raise_if(problems)
                first, self._file = first or columns, file
                if kinds is None:
                    yield table, columns
                    continue
                if not kinds.features:
                    raise DataError(_no_feature(file.name, kinds))
                names = tuple(item.name for item in kinds.features)
                yield table, Columns(names, self._label, extra=columns.extra)

    def _scan(self, columns: Columns, kinds: Kinds, *more: Any) -> Scan:
        """Return a scan without rows; `more` are the fields from the vocabulary on."""
        vocabulary, *others = more
        rule = self._placing.rule
        crossing = Crossing(self._folder) if self._placing.is_needed else None
        found = (columns, kinds, Faults(), vocabulary, *others)
        return Scan(*found, split_rule=rule, crossing=crossing)

    def _splits(self, chunk: Chunk) -> np.ndarray | None:
        """Return the split of each row of a chunk; None if the hash of the row decides."""
        if not self._placing.is_needed:
            return None
        return self._placing.splits(self._file, chunk)

    def _placed(self, scan: Scan, hashes: np.ndarray, splits: np.ndarray | None) -> np.ndarray:
        """Return hashes that lead to the splits."""
        if splits is None:
            return hashes
        placed = self._placing.place(hashes, splits)
        scan.crossing.add(hashes, split_of(placed, self._fractions))
        return placed

    def _number_rows(
        self, table: ArrowTable, columns: Columns, strict: bool
    ) -> Iterator[tuple[Rows, np.ndarray | None]]:
        for chunk in table.chunks(columns):
            if strict and not _numbers_only(chunk, columns):
                raise _NotPlainError
            chunk.faults.dropping = self._dropping(chunk)
            splits = self._splits(chunk)
            rows = table.number_rows(chunk, columns)
            yield rows, None if splits is None else splits[chunk.faults.good]

    def _dropping(self, chunk: Chunk) -> frozenset[str]:
        """Return the columns whose gaps leave a row out."""
        missing = self._options.missing
        named = {name for name, gaps in missing.items() if gaps.rule == "drop"}
        if EVERY_COLUMN in named:
            named |= chunk.columns.keys() - missing.keys() - {self._label}
        return frozenset(named)

    def _add(
        self, scan: Scan, rows: Rows, hashes: np.ndarray, codes: np.ndarray | None = None
    ) -> None:
        scan.faults.add(rows.faults)
        labels, numbers = scan.vocabulary.add(rows, split_of(hashes, self._fractions))
        dates = rows.dates if codes is not None else None
        scan.spill.add(hashes, labels, numbers, rows.features, codes, dates)


def _numbers_only(chunk: Chunk, columns: Columns) -> bool:
    """Tell whether every feature of a chunk is a number in every row."""
    for name in columns.features:
        column = chunk.columns[name]
        if not numeric(column.type) or pa.types.is_boolean(column.type) or column.null_count:
            return False
        if pa.types.is_floating(column.type):
            if np.isnan(column.to_numpy(zero_copy_only=False)).any():
                return False
    return True


def _coded(rows: Rows, texts: Mapping[str, Dictionary | Bins]) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of the texts, int32 of shape [rows, texts], and their hashes, uint64."""
    codes = np.empty((len(rows.lines), len(texts)), np.int32)
    hashes = np.empty((len(rows.lines), len(texts)), np.uint64)
    for j, ((name, coder), column) in enumerate(zip(texts.items(), rows.texts, strict=True)):
        try:
            codes[:, j], hashes[:, j] = coder.add(column)
        except TooManyTextsError:
            raise _LeftOutError([LeftOut(name, columns_kinds.TOO_MANY_TEXTS)]) from None
    return codes, hashes


def _no_feature(file: str, kinds: Kinds) -> Problem:
    return Problem(
        f"{file} has no column that a model can learn from",
        received="; ".join(f"{item.name!r}: {item.reason}" for item in kinds.left_out[:10]),
        expected="at least one feature",
        fix="name the kind of a column with data_options.types to keep it, or correct data_uri",
    )


def _other_columns(name: str, first: str, columns: Columns, others: Columns) -> Problem:
    more = sorted(set(columns.features) - set(others.features))
    fewer = sorted(set(others.features) - set(columns.features))
    return Problem(
        f"{name} does not have the columns of {first}",
        received="; ".join(
            f"{kind} {', '.join(map(repr, names[:10]))}"
            for kind, names in (("additional", more), ("missing", fewer))
            if names
        ),
        expected="the same columns in every file, in any order",
        fix="name the features with data_options.columns, or leave out the columns that some"
        " files lack with data_options.drop",
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
