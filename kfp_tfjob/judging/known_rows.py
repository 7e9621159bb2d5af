"""Tells whether the model was trained on the test rows, so that its metrics promise too much.

prepare_data counts the test rows whose features are also in train, where folders, a column, groups
or times divide the data. An image that appears twice was copied. Rows of a table may be equal by
nature, where few columns have few values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kfp_tfjob.judging.rows import SPLIT, TestData
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.verdict_record import Check

_OF_PICTURES = 0.5  # a larger share of known ones fails the model
_OF_ROWS = 0.99  # the least share of known ones that may
_OF_TRAIN = (
    0.05  # of train's rows: the fewest test rows to decide; a table may have each row once a day
)
_LOOKED_AT = 100_000  # rows
_FEWEST_REPEATS = 20  # expected, so that half as many are not chance


def also_in_train(data: TestData) -> int | None:
    """Return how many test rows are also in train; None if it was not counted."""
    return (data.statistics.also_in_train or {}).get(SPLIT)


def failed_checks(data: TestData) -> list[Check]:
    """Return the failed check of test rows that were trained on; none of others."""
    known = also_in_train(data) or 0
    if data.trained_on:
        why = f"{listed(data.trained_on, 3)} has the same bytes as a shard of another split"
    elif _are_copies(data, known):
        why = f"{known:,} of {data.rows:,} are also in train, too many to be chance"
    else:
        return []
    text = f"the test rows were trained on: {why}; split the data again"
    return [Check("trained_on", False, text)]


def _are_copies(data: TestData, known: int) -> bool:
    """Return whether so many test rows are in train that they must be copies.

    Of k equally frequent rows, n rows of train leave the share exp(-n / k) unseen. If nature leaves
    at most 1%, k is at most n / ln(100), and with so few, test rows repeat each other, too.
    Rows of other frequencies repeat each other more. Copies of rows that differ do not.
    """
    if data.schema.picture:
        return known > _OF_PICTURES * data.rows
    train = data.schema.rows.get("train", 0)
    if known < _OF_ROWS * data.rows or data.rows < _OF_TRAIN * train or not train:
        return False
    kinds = train / -math.log(1 - _OF_ROWS)
    rows, repeats = _repeats(data)
    expected = rows + kinds * math.expm1(-rows / kinds)
    return expected >= _FEWEST_REPEATS and repeats < expected / 2


def _repeats(data: TestData) -> tuple[int, int]:
    """Return how many rows were looked at, and how many of them equal an earlier one."""
    rows, seen = 0, set()
    for batch in data.batches():
        seen.update(map(hash, _as_keys(batch.features)))
        rows += len(batch.labels)
        if rows >= _LOOKED_AT:
            break
    return rows, rows - len(seen)


def _as_keys(features: Mapping[str, np.ndarray]) -> Iterable[Any]:
    """Return what is equal for equal rows; as bits, a missing value equals a missing value."""
    columns = [np.asarray(values) for values in features.values()]
    return zip(
        *((it.view(np.int64) if it.dtype == np.float64 else it).tolist() for it in columns),
        strict=True,
    )
