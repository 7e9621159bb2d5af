"""Decides whether the rows that were read are enough to train with, and what the label is.

Called by prepare_data's engine, between reading the source and writing the dataset.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.options.data import DataOptions

from .column_warnings import plain_spelling
from .faults import Faults
from .labels import Label, number_fix
from .scan import Scan
from .source.column_names import no_rows

log = logging.getLogger(__name__)


def decide(scan: Scan) -> Label:
    """Determine the task and the classes of the label.

    Raises:
        DataError: There are more bad rows than the options allow, the label is unusable, a split
            has no rows, or train has no row of a class.
    """
    faults, labels, options = scan.faults, scan.labels, scan.job.options
    if folders := scan.job.source.pictures:
        return _decide_images(scan, folders.classes)
    faults.label, faults.options = labels.name, options
    if not faults.seen:
        raise DataError(no_rows())
    if order := faults.order_problem():  # the rows below it would be in the wrong columns
        raise DataError(order)
    if faults.bad and (options.on_bad_row == "fail" or faults.bad == faults.seen):
        raise DataError(*faults.problems())
    label = labels.decide(options.task, options)
    if label.classes is None and labels.text_rows.any():
        count = int(labels.text_rows.sum())
        cells = Counter({(label.name, "text"): count})
        text_faults = labels.text_faults
        values = {label.name: text_faults[0].value}
        texts = Faults(0, Counter(text=count), cells, examples=text_faults, values=values)
        faults.merge(texts)  # their rows are among those that were seen
    check_bad(faults, faults.problems, options)
    for name, rows in faults.left_out.items():
        row_count = counted(rows, "row")
        log.info("%s without a value in %r dropped, as data_options.missing says", row_count, name)
    if options.task == "auto":
        log.info("the values of the label mean %s; data_options.task sets another task", label.task)
    counts = None if label.classes is None else labels.class_counts(label)
    check(scan.rows(label), label.name, label.classes, counts, options, scan.job.split_rules.rule)
    return label


def _decide_images(scan: Scan, classes: tuple[str, ...]) -> Label:
    """Return the label, whose classes are the names of the folders."""
    faults, options = scan.faults, scan.job.options
    faults.options = options
    check_bad(faults, faults.image_problems, options)
    codes = np.arange(len(classes), dtype=np.int32)
    label = Label(scan.labels.name, "classification", classes, codes)
    counts, rule = scan.labels.class_counts(label), scan.job.split_rules.rule
    check(scan.rows(label), label.name, classes, counts, options, rule, "image")
    return label


def check_bad(
    faults: Faults,
    problems: Callable[[], list[Problem]],
    options: DataOptions,
) -> None:
    """Reject more bad rows than the options allow, which `problems` describes, and log fewer."""
    if faults.bad and (options.on_bad_row == "fail" or faults.bad == faults.seen):
        raise DataError(*problems())
    if faults.bad > options.max_bad_fraction * faults.seen:
        limit = Problem(
            "more rows are invalid than data_options.max_bad_fraction allows",
            received=f"{faults.bad:,} of {faults.seen:,} rows, which is a fraction of"
            f" {faults.bad / faults.seen:.3g}",
            expected=f"at most {options.max_bad_fraction:g}",
            fix="correct the data, or raise data_options.max_bad_fraction",
            name="too-many-invalid-rows",
        )
        raise DataError(limit, *problems())
    if faults.bad:
        log.warning("%s", "\n  ".join(map(str, problems())))


def check(
    rows: Mapping[str, int],
    label: str,
    classes: tuple[str, ...] | None,
    counts: np.ndarray | None,
    options: DataOptions,
    rule: Mapping[str, str | int],
    noun: str = "row",
) -> None:
    """Reject data that leaves a split without rows, or train without a row of a class.

    Args:
        rows: By split.
        label: The name of the label.
        classes: Their names; None for a label that is a number.
        counts: int64 of shape [3, classes], rows by split and class; None without classes.
        options: The typed `data_options`.
        rule: What decides about the split besides the hash of the rows.
        noun: What a row is.
    """
    counts_shown = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    by = ", ".join(f"{key} {value!r}" for key, value in rule.items())
    if not all(rows.values()):
        raise DataError(
            Problem(
                "a split has no rows",
                received=f"{counts_shown}, with the fractions {options.split.fractions}"
                + (f", divided by {by}" if by else ""),
                expected=f"rows in {listed(SPLITS, 3)}",
                fix="provide rows for it, or change data_options.split"
                if by
                else "provide more rows, larger fractions or a different data_options.split.salt;"
                " rows with equal features always go to the same split",
                name="split-without-rows",
            )
        )
    if classes is None or counts is None:
        return
    lacking = [name for name, train in zip(classes, counts[0], strict=True) if not train]
    if lacking:
        raise DataError(_not_in_train(label, classes, counts, lacking, options, rule, noun))


def _not_in_train(
    label: str,
    classes: tuple[str, ...],
    counts: np.ndarray,
    lacking: list[str],
    options: DataOptions,
    rule: Mapping[str, str | int],
    noun: str,
) -> Problem:
    """Describe classes without a row of train, with a class of train that may be the same."""
    rows = dict(zip(classes, counts.sum(0).tolist(), strict=True))
    in_train = {plain_spelling(name): name for name in classes if name not in lacking}
    alike = {
        name: in_train[plain_spelling(name)] for name in lacking if plain_spelling(name) in in_train
    }
    classes_shown = [
        f"{name!r} ({counted(rows[name], noun)}"
        + (f"; train has {alike[name]!r})" if name in alike else ")")
        for name in lacking
    ]
    fixes = ["write each class in the same way everywhere"] if alike else []
    unusable = [name for name in lacking if not rows[name]]  # folders of invalid images
    if unusable:
        fixes.append(
            f"correct the {noun}s of {listed(map(repr, unusable), 10)}, of which none is valid, or"
            " remove them with their folder"
        )
    if len({*alike, *unusable}) < len(lacking):
        is_number = number_fix(label, classes, options)
        # By a hash, the salt decides. Otherwise the classes may stand for no label, as in the
        # test of a competition.
        provide = (
            f"provide more of these {noun}s, remove them, or use another data_options.split.salt"
            if not rule or "group" in rule
            else f"provide some of these {noun}s in train, or remove them if they have no label"
        )
        if noun == "row":
            provide = f"if the label is a number, {is_number}; otherwise, {provide}"
        fixes.append(provide)
    return Problem(
        f"train has no {noun} for {len(lacking)} of the {len(classes)} classes of {label!r}",
        received=listed(classes_shown, 10),
        expected=f"{noun}s of every class in train",
        fix="; ".join(fixes),
    )
