"""Detects test rows that the model was trained on, with which its metrics promise too much.

If folders, a column, groups or times split the data, prepare_data counts the test rows whose
features are also in train. Two equal images are copies. Equal rows of a table may also be chance,
if few columns have few values, so the number expected by chance is estimated.

Called by judge.py; the gate fails if a check does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kfp_tfjob.common.formatting import listed
from kfp_tfjob.registry.verdict_record import Check

from .rows import SPLIT, TestData

_MOST_LEAKED_IMAGES = 0.5  # a larger share of images that are also in train fails the model
_LEAST_LEAKED_ROWS = 0.99  # a smaller share of rows that are also in train never fails the model
# Test rows per row of train. A smaller test split does not show whether its rows repeat: a table
# may list each row once a day.
_LEAST_SHARE_OF_TRAIN = 0.05
_MOST_COMPARED = 100_000  # test rows whose hashes are in memory at once
_FEWEST_REPEATS = 20  # with fewer expected repeats, half of them could be chance


def leaked_rows(data: TestData) -> int | None:
    """Return the number of test rows that are also in train; None if it was not counted."""
    return (data.statistics.also_in_train or {}).get(SPLIT)


def overlap_checks(data: TestData) -> list[Check]:
    """Return one failed check if the model was trained on the test rows; otherwise none."""
    leaked = leaked_rows(data) or 0
    if data.trained_on:
        reason = f"{listed(data.trained_on, 3)} has the same bytes as a shard of another split"
    elif _contains_copies(data, leaked):
        reason = f"{leaked:,} of {data.rows:,} are also in train, too many to be chance"
    else:
        return []
    text = f"the test rows were trained on: {reason}; split the data again"
    return [Check("trained_on", False, text)]


def _contains_copies(data: TestData, leaked: int) -> bool:
    """Return whether more test rows are in train than chance explains, so that they are copies.

    If there are k equally frequent distinct rows, n rows of train leave the share exp(-n / k)
    unseen. If at most 1% is unseen by chance, k is at most n / ln(100). With so few distinct rows,
    test rows also repeat each other, and even more so if frequencies differ. If test rows repeat
    each other much less, they were copied from train.
    """
    if data.schema.picture:
        return leaked > _MOST_LEAKED_IMAGES * data.rows
    train = data.schema.rows.get("train", 0)
    if (
        leaked < _LEAST_LEAKED_ROWS * data.rows
        or data.rows < _LEAST_SHARE_OF_TRAIN * train
        or not train
    ):
        return False
    distinct_rows = train / -math.log(1 - _LEAST_LEAKED_ROWS)
    rows, repeats = _count_repeats(data)
    expected = rows + distinct_rows * math.expm1(-rows / distinct_rows)
    return expected >= _FEWEST_REPEATS and repeats < expected / 2


def _count_repeats(data: TestData) -> tuple[int, int]:
    """Return the number of compared test rows, and how many of them equal an earlier one."""
    rows, hashes = 0, set()
    for batch in data.batches():
        hashes.update(map(hash, _row_keys(batch.features)))
        rows += len(batch.labels)
        if rows >= _MOST_COMPARED:
            break
    return rows, rows - len(hashes)


def _row_keys(features: Mapping[str, np.ndarray]) -> Iterable[Any]:
    """Yield a tuple for each row, equal for equal rows.

    Floats are compared by their bits, because NaN, a missing value, does not equal NaN.
    """
    columns = [np.asarray(values) for values in features.values()]
    return zip(
        *(
            (column.view(np.int64) if column.dtype == np.float64 else column).tolist()
            for column in columns
        ),
        strict=True,
    )
