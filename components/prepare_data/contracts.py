"""Compares a dataset with the champion's: the raw contract, unseen values and missing values.

The raw contract is what schema_digest covers: task, columns with their kinds and order, classes and
split. If it differs, evaluate cannot compare the two models. Called by the validation of the
dataset and by its report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kfp_tfjob.common.errors import Problem, first
from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.features.schema import DROP, Schema
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.options.data_contract import Contract

from .reference import Reference
from .sample import Sample

_MOST_NAMED = 20  # columns or classes in one problem
# Of the hashes that decide about splits (split_rules.py), which no option can set.
_REVISIONS = ("group_revision", "row_revision")
_MOST_VALUES = 5  # unseen values of a column


def changes(reference: Reference, schema: Schema) -> list[Problem]:
    """Return the differences between the raw contracts, each with its fix."""
    if schema.schema_digest == reference.schema.schema_digest:
        return []
    differences = [
        *_columns(reference, schema),
        *_rules(reference, schema),
        *_revised_splits(reference, schema),
        *_classes(reference, schema),
    ]
    return differences or [
        Problem(
            f"the schema differs from that of {reference.name}",
            received=f"schema_digest {schema.schema_digest[:12]}",
            expected=reference.schema.schema_digest[:12],
            fix="use the version of kfp-tfjob that prepared the champion's data",
        )
    ]


def consequence(reference: Reference) -> Problem:
    """Explain what changes lead to, and how to proceed."""
    return Problem(
        f"evaluate cannot compare a model of this data with {reference.name}, so it is published"
        " only if gate.incompatible_champion allows it",
        fix="if the changes are intended, train under another model_name, or let the model"
        " replace the"
        ' champion without a comparison with gate={"incompatible_champion": "treat_as_first"}',
    )


def _columns(reference: Reference, schema: Schema) -> Iterator[Problem]:
    before = {item.name: item.type for item in reference.schema.features}
    now = {item.name: item.type for item in schema.features}
    reasons = {item.name: item.reason for item in schema.left_out}
    missing = [name for name in before if name not in now]
    lost = []
    for name in missing:
        kind, reason = _kind(before[name]), reasons.get(name)
        types_option = f"data_options.types={_json({name: kind})}"
        if reason == DROP:
            fix = f"remove it from {DROP}"
        elif reason:
            fix = f"keep it with {types_option}"
        else:
            fix = "add it to the data or, if that is set, to data_options.columns"
        problem = Problem(
            f"the column {name!r} of {reference.name} is missing",
            received=f"it is dropped: {reason}" if reason else "no such column",
            expected=f"a {kind}",
            fix=fix,
        )
        lost.append(problem)
    yield from first(lost, _MOST_NAMED, "columns are missing")
    if new := [name for name in now if name not in before]:
        dropped = [column.name for column in schema.left_out if column.reason == DROP]
        yield Problem(
            f"the data has columns that {reference.name} does not have",
            received=listed([f"{name!r} ({_kind(now[name])})" for name in new], _MOST_NAMED),
            expected=f"the {len(before):,} columns of {reference.name}",
            fix=f"drop them with {setting('data_options.drop', [*dropped, *new])}"
            if len(dropped) + len(new) <= _MOST_NAMED
            else f"set {setting('data_options.columns', list(before))}"
            if len(before) <= _MOST_NAMED
            else "list only the champion's columns, in their order, in data_options.columns",
        )
    retyped = [
        Problem(
            f"the type of {name!r} differs from that of {reference.name}",
            received=_kind(now[name]),
            expected=_kind(kind),
            fix=f"correct its values, or set data_options.types={_json({name: _kind(kind)})}",
        )
        for name, kind in before.items()
        if name in now and now[name] != kind
    ]
    yield from first(retyped, _MOST_NAMED, "columns have another type")
    if not missing and not new and list(before) != list(now):
        yield Problem(
            f"the columns are in a different order from those of {reference.name}",
            received=listed(now, _MOST_NAMED),
            expected=listed(before, _MOST_NAMED),
            fix=f"set data_options.columns={_json(list(before))}"
            if len(before) <= _MOST_NAMED
            else "list all columns in their original order in data_options.columns",
        )


def _rules(reference: Reference, schema: Schema) -> Iterator[Problem]:
    """Yield how label, task and split differ."""
    old, new = reference.schema, schema
    set_task = f"set data_options.task={_json(old.task)}"
    set_split = f"set data_options.split={_json(_rule(old.split))}"
    for subject, before, now, fix in (
        ("label", old.label.name, new.label.name, "correct data_label"),
        ("task", old.task, new.task, set_task),
        ("split of the rows", old.split, new.split, set_split),
    ):
        if before != now and not (before is old.split and _is_revised(old, new)):
            yield Problem(
                f"the {subject} differs from that of {reference.name}",
                received=_json(now),
                expected=_json(before),
                fix=fix,
            )


def _revised_splits(reference: Reference, schema: Schema) -> Iterator[Problem]:
    """Yield the problem of a split that differs only by the revision of the hash that decides."""
    old, new = reference.schema, schema
    if _is_revised(old, new):
        yield Problem(
            "this version of kfp-tfjob assigns rows to train, validation and test in another way"
            f" than the one that prepared the data of {reference.name}",
            received=_json(_revision(new.split)),
            expected=_json(_revision(old.split)),
            fix="no option restores the earlier split; replace the champion once without a"
            " comparison, as the next message says",
        )


def _is_revised(old: Schema, new: Schema) -> bool:
    return old.split != new.split and _rule(old.split) == _rule(new.split)


def _classes(reference: Reference, schema: Schema) -> Iterator[Problem]:
    old, new = reference.schema.classes, schema.classes
    if schema.task != reference.schema.task:
        return
    if lacking := [name for name in old if name not in new]:
        yield Problem(
            f"the label lacks classes of {reference.name}",
            received=f"no row of {listed(map(repr, lacking), _MOST_NAMED)}",
            expected=f"its {len(old):,} classes",
            fix="add rows of these classes",
        )
    if added := [name for name in new if name not in old]:
        yield Problem(
            f"the label has classes that {reference.name} does not have",
            received=listed(map(repr, added), _MOST_NAMED),
            expected=f"its {len(old):,} classes",
            fix="correct these labels, or remove their rows",
        )


def _rule(split: Mapping[str, Any]) -> dict[str, Any]:
    """Return data_options.split of a schema."""
    rule = {key: split[key] for key in split if key not in ("fractions", *_REVISIONS)}
    return {**split["fractions"], **rule}


def _revision(split: Mapping[str, Any]) -> dict[str, Any]:
    """Return the revision of the split's hash; 1 if the schema is from before codec 4."""
    return {key: split[key] for key in _REVISIONS if key in split} or {"row_revision": 1}


def gap_shares(statistics: StatisticsDocument) -> dict[str, float]:
    """Return the share of missing values in each column of train."""
    columns = statistics.features.items()
    return {
        name: column.missing / max(column.missing + column.count, 1) for name, column in columns
    }


def beyond_limits(
    reference: Reference,
    options: Contract,
    schema: Schema,
    train: Sample,
    gaps: Mapping[str, tuple[float, float]],
) -> Iterator[Problem]:
    """Yield what is beyond the limits of unseen values and of missing ones, before and now."""
    for name, share, values in _unseen(reference, schema, train):
        if options.max_unseen is None or name in options.ignore:
            continue
        if share > options.max_unseen:
            yield Problem(
                f"the category {name!r} has values that the data of {reference.name} does not have",
                received=f"{share:.1%} of the training rows, for example"
                f" {listed(map(repr, values), _MOST_VALUES)}",
                expected=f"at most {options.max_unseen:.1%} (data_options.contract.max_unseen)",
                fix="correct these values; if they are right, raise the limit, or add"
                f" {_json(name)} to data_options.contract.ignore",
            )
    for name, (before, now) in gaps.items():
        if options.max_gap_rise is None or name in options.ignore:
            continue
        if now - before > options.max_gap_rise:
            yield Problem(
                f"the column {name!r} has more missing values than in the data of {reference.name}",
                received=f"{now:.1%} of the training rows, {before:.1%} before",
                expected=f"at most {before + options.max_gap_rise:.1%}"
                " (data_options.contract.max_gap_rise)",
                fix="find out why its values are missing; if this is correct, raise the limit, or"
                f" add {_json(name)} to data_options.contract.ignore",
            )


def _unseen(
    reference: Reference, schema: Schema, train: Sample
) -> Iterator[tuple[str, float, list[str]]]:
    """Yield each category with values that the data of the champion does not have.

    Yields:
        Its name, the share of these rows of train that have one, and the most frequent ones.
    """
    dictionaries = {
        item.name: set(learned["dictionary"])
        for item, learned in zip(reference.schema.features, reference.schema.coding, strict=False)
        if "dictionary" in learned
    }
    coding = schema.encoding
    for coded, (_, place) in zip(coding.features, coding.places, strict=True):
        if not coded.has_dictionary or coded.name not in dictionaries:
            continue
        new = [i for i, text in enumerate(coded.strings, 1) if text not in dictionaries[coded.name]]
        counts = np.bincount(train.rows["codes"][:, place], minlength=len(coded.strings) + 1)[new]
        usual = np.argsort(-counts, kind="stable")[:_MOST_VALUES].tolist()
        share = float(counts.sum() / max(len(train.labels), 1))
        yield coded.name, share, [coded.strings[new[i] - 1] for i in usual]


def _kind(schema_type: str) -> str:
    return next(
        (
            column_type.kind
            for column_type in TYPES.values()
            if column_type.schema_type == schema_type
        ),
        schema_type,
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
