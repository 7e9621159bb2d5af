"""Warns about columns and classes that a person should look at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from unicodedata import normalize

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import INDEX, NO_VALUE, Kinds
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnStatistics, Field
from kfp_tfjob.storage.formatting import listed

_MOST_WARNED = 10  # names in one warning
# What programs and people write for no value, besides data_options.null_values.
_LIKE_MISSING = frozenset({"none", "nil", "<na>", "#n/a", "?", "-", "--", ".", "..", "\\n"})
_KEEP = "; to keep it, set its type in data_options.types"


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
    padded = [it.name for it in kinds.features if it.name in kinds.padded and it.type.is_direct]
    if padded:
        types = json.dumps(dict.fromkeys(padded[:_MOST_WARNED], "category"), ensure_ascii=False)
        warnings.append(
            f"whole numbers with leading zeros, like codes: {_some(padded)}; to keep the zeros, set"
            f" data_options.types={types}"
        )
    at = {it.name: at for it, at in zip(coding.features, coding.places, strict=True)}
    return [*warnings, *_feature_warnings(features, lambda name: sampled(at[name]))]


def _feature_warnings(
    features: Mapping[str, ColumnStatistics], sampled: Callable[[str], np.ndarray]
) -> Iterator[str]:
    if empty := [name for name, column in features.items() if not column.count]:
        yield f"no value in train, so missing values become 0: {', '.join(empty[:10])}"
    constant = [
        name
        for name, column in features.items()
        if column.count and not column.missing and column.is_constant
    ]
    if constant:
        yield f"the same value in every row of train: {_some(constant)}"
    for kind, type in TYPES.items():
        columns = {name: it for name, it in features.items() if it.kind == kind}
        yield from type.warnings(columns, {name: sampled(name) for name in columns})


def label_warnings(
    classes: Sequence[str], counts: np.ndarray, padded: Sequence[Sequence[str]] = ()
) -> list[str]:
    """Return what is odd about the classes of a label.

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
        found = zip(classes, counts[i], strict=True)
        if lacking := [name for name, count in found if not count]:
            warnings.append(f"{split} has no row of these classes: {_some(lacking)}")
    if missing := [name for name in classes if plain_spelling(name) in _LIKE_MISSING]:
        warnings.append(
            f"classes that may mean a missing label: {_some(missing)}; if they do, add them to"
            " data_options.null_values"
        )
    if alike := _alike(classes):
        warnings.append(f"these classes may be the same one in other spellings: {_some(alike)}")
    return warnings


def plain_spelling(name: str) -> str:
    """Return a string without differences of case, blanks or Unicode form."""
    return " ".join(normalize("NFKC", name).casefold().split())


def _alike(classes: Sequence[str]) -> list[str]:
    """Return the classes that differ from another only in their spelling."""
    plain = [plain_spelling(name) for name in classes]
    counts = Counter(plain)
    return [name for name, key in zip(classes, plain, strict=True) if counts[key] > 1]


def _some(names: list[str]) -> str:
    """Return the first names for a warning."""
    return listed(names, _MOST_WARNED)
