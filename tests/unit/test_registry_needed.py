"""Which champions were before the present one, and which of them a prune must keep."""

from collections.abc import Sequence

import pytest

from kfp_tfjob.registry.champion import PROMOTE, ROLLBACK, Champion
from kfp_tfjob.registry.prune_versions import _needed
from kfp_tfjob.registry.rollback import walk_back


@pytest.mark.parametrize(
    ("versions", "keep", "needed"),
    [
        ([1, 2, 3], 1, {3, 2}),
        ([1, 2, 3, 2], 1, {2, 3, 1}),  # the next rollback goes to 1
        ([1, 2, 3, 4, 5, 6, 5, 4, 3], 1, {3, 4, 2}),
        ([1, 2, 3, 4, 5, 6, 5, 4, 3], 3, {3, 4, 5, 6, 2, 1}),
        ([1], 3, {1}),
        ([], 3, set()),
    ],
)
def test_what_a_rollback_may_need(versions: list[int], keep: int, needed: set[int]) -> None:
    records = [
        record(at + 1, version, ROLLBACK if version in versions[:at] else "")
        for at, version in enumerate(versions)
    ]
    assert set(_needed(records[::-1], keep)) == needed


@pytest.mark.parametrize(
    ("history", "before"),
    [
        ([(1, ""), (2, ""), (3, "")], [2, 1]),
        ([(1, ""), (2, ""), (3, ""), (2, ROLLBACK)], [1]),
        ([(1, ""), (2, ""), (3, ""), (2, PROMOTE)], [3, 1]),
        ([(1, ""), (2, ""), (1, PROMOTE), (3, ""), (1, ROLLBACK)], [2]),
        ([(1, ROLLBACK)], []),
        ([(2, ""), (1, ROLLBACK)], [2]),  # the first record of 1 is damaged
    ],
)
def test_only_a_rollback_leaves_versions_behind(
    history: Sequence[tuple[int, str]], before: list[int]
) -> None:
    records = [record(at, version, action) for at, (version, action) in enumerate(history, 1)]
    now, *earlier = records[::-1]
    assert [it.version for it in walk_back(now, earlier)] == before


def record(number: int, version: int, action: str) -> Champion:
    usual = ("s3://b/v", "r", "w", "s", "d", {}, "s3://b/verdict.json")
    return Champion(number, version, *usual, action=action)
