"""Which champions a prune must keep."""

import pytest

from kfp_tfjob.registry.prune import _needed
from kfp_tfjob.storage.champion import ROLLBACK, Champion


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
        Champion(
            number=at + 1,
            version=version,
            version_uri="s3://b/v",
            run_id="r",
            exported_weights_sha256="w",
            schema_digest="s",
            dataset_digest="d",
            metrics={},
            verdict_uri="s3://b/verdict.json",
            action=ROLLBACK if version in versions[:at] else "",
        )
        for at, version in enumerate(versions)
    ]
    assert set(_needed(records[::-1], keep)) == needed
