"""Warns about columns and classes that a person should look at.

Called where statistics.json is written, for tables and for images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any
from unicodedata import normalize

import numpy as np

from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.features.cells import number_text
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnStatistics, Field
from kfp_tfjob.features.types.lookalikes import are_booleans
from kfp_tfjob.features.types.number import is_number

from .kinds import INDEX, NO_VALUE, Kinds
from .labels import Label

_MOST_WARNED = 10  # names in one warning
# Strings often written for a missing value, besides data_options.null_values.
_LIKE_MISSING = frozenset({"none", "nil", "<na>", "#n/a", "?", "-", "--", ".", "..", "\\n"})
_FAR = 2  # times the share of a split, or one over it
_BY_CHANCE = 5  # standard deviations of rows that are divided one by one


def column_warnings(
    kinds: Kinds,
    coding: Coding,
    features: Mapping[str, ColumnStatistics],
    sampled: Callable[[tuple[Field, int]], np.ndarray],
) -> list[str]:
    """Return a line for each column that is omitted, and those about the features.

    `features` are their statistics over train. `sampled` returns some values of train, given the
    place of a column in a row.
    """
    warnings = [
        f"the column {item.name!r} is dropped: {item.reason}"
        + (
            ""
            if item.reason in (NO_VALUE, INDEX)
            else "; to keep it, set its type in data_options.types"
        )
        for item in kinds.left_out
    ]
    padded = [
        feature.name
        for feature in kinds.features
        if feature.name in kinds.padded and feature.type.is_direct
    ]
    if padded:
        types = dict.fromkeys(padded[:_MOST_WARNED], "category")
        warnings.append(
            f"whole numbers with leading zeros, like codes: {_some(padded)}; to keep the zeros, set"
            f" {setting('data_options.types', types)}"
        )
    names = (feature.name for feature in coding.features)
    places = dict(zip(names, coding.places, strict=True))
    return [*warnings, *_feature_warnings(features, lambda name: sampled(places[name]))]


def _feature_warnings(
    features: Mapping[str, ColumnStatistics], sampled: Callable[[str], np.ndarray]
) -> Iterator[str]:
    if empty := [name for name, column in features.items() if not column.count]:
        yield f"no value in train, so the model learns nothing from: {', '.join(empty[:10])}"
    constant = [
        name
        for name, column in features.items()
        if column.count and not column.missing and column.is_constant
    ]
    if constant:
        yield f"the same value in every row of train: {_some(constant)}"
    for kind, type in TYPES.items():
        columns = {
            name: statistics for name, statistics in features.items() if statistics.kind == kind
        }
        yield from type.warnings(columns, {name: sampled(name) for name in columns})


def label_warnings(
    classes: Sequence[str], counts: np.ndarray, padded: Sequence[Sequence[str]] = ()
) -> list[str]:
    """Return warnings about a label's classes.

    Args:
        classes: Their names.
        counts: int64 of shape [3, classes], rows by split and class.
        padded: The labels of each class that has some with leading zeros and some without.
    """
    warnings = [
        f"these labels are one class, as numbers: {_some(list(map(repr, texts)))}; if they are"
        " codes, write them with a letter"
        for texts in padded[:_MOST_WARNED]
    ]
    for i, split in enumerate(SPLITS[1:], 1):
        counts_of_classes = zip(classes, counts[i], strict=True)
        if lacking := [name for name, count in counts_of_classes if not count]:
            warnings.append(f"{split} has no row of these classes: {_some(lacking)}")
    return [*warnings, *_missing_classes(classes), *alike_classes(classes)]


def label_suspicions(label: Label) -> list[str]:
    """Return reasons to suspect that the label's classes are not the intended ones."""
    classes = label.classes or ()
    # A and a are two letters.
    alike = (
        alike_classes(classes) if alike_classes([name for name in classes if len(name) > 1]) else []
    )
    missing = _missing_classes(classes)
    usual_names = [name for name in classes if not _is_like_missing(name)]
    return [*(missing if are_booleans(usual_names) else []), *alike, *label.suspicions]


def _missing_classes(classes: Sequence[str]) -> list[str]:
    """Return a line if classes may mean a missing label."""
    missing = list(filter(_is_like_missing, classes))
    if not missing:
        return []
    return [
        f"classes that may mean a missing label: {_some(missing)}; if they do, add them to"
        " data_options.null_values"
    ]


def _is_like_missing(name: str) -> bool:
    return plain_spelling(name) in _LIKE_MISSING


def uneven_splits(
    rows: Mapping[str, int], duplicates: int, fractions: Mapping[str, float], by: Mapping[str, Any]
) -> list[str]:
    """Return a line if hashes divide the rows far from the shares, and not by chance.

    Args:
        rows: By split.
        duplicates: Rows with the features of an earlier row.
        fractions: The shares, by split.
        by: The keys of `data_options.split` that decide.
    """
    total = sum(rows.values())
    together = "group" in by or (not by and duplicates)
    uneven = [
        split
        for split, share in fractions.items()
        if not share / _FAR <= rows[split] / max(total, 1) <= share * _FAR
        and abs(rows[split] - share * total) > _BY_CHANCE * sqrt(share * (1 - share) * total)
    ]
    if not together or not uneven:
        return []
    shares = ", ".join(
        f"{split} {rows[split] / total:.0%} ({fractions[split]:.0%})" for split in rows
    )
    if "group" in by:
        why = f"the rows of a group stay together, and {by['group']!r} has few or large groups"
        fix = "name a column with more values there"
    else:
        why = f"rows with the same features stay together, and only {total - duplicates:,} differ"
        fix = "divide them by a column that names the split with data_options.split.column"
        fix += ", or by a column that numbers the rows with data_options.split.group"
    return [f"the splits are far from their requested shares: {shares}; {why}: {fix}"]


def plain_spelling(name: str) -> str:
    """Return a string without differences of case, blanks, quotes, a full stop or Unicode form."""
    return " ".join(normalize("NFKC", name).casefold().split()).strip("'\"").rstrip(". ") or name


def alike_classes(classes: Sequence[str]) -> list[str]:
    """Return a line if classes differ from another only in their spelling."""
    plain = [
        number_text(float(name)) if is_number(name) else plain_spelling(name) for name in classes
    ]
    counts = Counter(plain)
    alike = [name for name, key in zip(classes, plain, strict=True) if counts[key] > 1]
    if not alike:
        return []
    return [f"these classes may be the same one in other spellings: {_some(alike)}"]


def _some(names: list[str]) -> str:
    """Return the first names for a warning."""
    return listed(names, _MOST_WARNED)
