"""Reads the source in one pass: writes rows to local disk by hash, and counts labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.header import choose, no_rows
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.spill import Spill, row_hashes, split_of
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.components.prepare_data.tables import open_table
from kfp_tfjob.components.prepare_data.vocabulary import Label, Vocabulary
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.words import listed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scan:
    """The result of reading the source.

    Attributes:
        columns: The columns read from each file.
        faults: The bad rows.
        vocabulary: The labels of the good rows.
        spill: The good rows, on local disk.
    """

    columns: Columns
    faults: Faults
    vocabulary: Vocabulary
    spill: Spill

    def rows(self, label: Label) -> dict[str, int]:
        """Return the number of good rows in each split, given the label."""
        counts = self.vocabulary.number_rows.copy()
        if label.classes is not None:
            counts += self.vocabulary.text_rows
        return dict(zip(SPLITS, counts.tolist(), strict=True))


def read(source: Source, data_label: str, options: DataOptions, folder: Path, block: int) -> Scan:
    """Read the source once.

    Args:
        source: The files.
        data_label: The label column.
        options: The typed `data_options`.
        folder: An empty folder on local disk, with room for all features as float32.
        block: Bytes of a CSV to parse at a time.

    Raises:
        DataError: A file cannot be read, or does not have the expected columns.
    """
    scan: Scan | None = None
    progress = ProgressLog("read")
    fractions = list(options.split.fractions.values())
    for file in source.files:
        with open_table(source, file, options, block) as table:
            columns, problems = choose(table.names, data_label, options, file.name)
            problems += table.problems(columns) if columns else []
            if scan and columns and set(columns.features) != set(scan.columns.features):
                problems.append(_other_columns(file.name, source.files[0].name, columns, scan))
            DataError.raise_if(problems)
            if scan is None:
                spill = Spill(folder, len(columns.features))
                scan = Scan(columns, Faults(), Vocabulary(data_label), spill)
            for rows in table.rows(scan.columns):
                scan.faults.add(rows.faults)
                hashes = row_hashes(rows.features, options.split.salt)
                split = split_of(hashes, fractions)
                codes, numbers = scan.vocabulary.add(rows, split)
                scan.spill.add(hashes, codes, numbers, rows.features)
                progress.add(rows.faults.seen, rows.size)
    scan.spill.close()
    progress.log()
    return scan


def _other_columns(name: str, first: str, columns: Columns, scan: Scan) -> Problem:
    more = sorted(set(columns.features) - set(scan.columns.features))
    fewer = sorted(set(scan.columns.features) - set(columns.features))
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
    _enough(scan.rows(label), vocabulary, label, options)
    return label


def _enough(
    rows: Mapping[str, int], vocabulary: Vocabulary, label: Label, options: DataOptions
) -> None:
    """Refuse data that leaves a split without rows, or train without a row of a class."""
    shown = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    if not all(rows.values()):
        raise DataError(
            Problem(
                "a split has no rows",
                received=f"{shown}, with the fractions {options.split.fractions}",
                expected="rows in train, validation and test",
                fix="provide more rows, larger fractions or a different data_options.split.salt;"
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
