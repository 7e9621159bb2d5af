"""A model that a rollback replaced is not published by the next run that trains it again."""

import pytest

from kfp_tfjob.registry import rollback
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import NAME, publish, roll_back
from tests.local.test_evaluate_publish import MODEL, Bench, cooler, packed
from tests.local.test_evaluate_publish import rows as rows  # a fixture


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        # r1 was replaced by a better one; back again; whatever came then.
        (["r1", "r2", 0, 2, "r3"], [{}, {}, {2: 1}, {1: 2}, {1: 2}]),
        (["r1", "r2", "r3", 0, 0], [{}, {}, {}, {3: 2}, {3: 2, 2: 1}]),
    ],
)
def test_what_a_rollback_replaced(
    store: Store, layout: Layout, history: list[str | int], expected: list[dict[int, int]]
) -> None:
    for it, wanted in zip(history, expected, strict=True):
        if isinstance(it, str):
            publish(store, layout, it)
        else:
            roll_back(store, layout, it)
        found = {}
        for run_id in ("r1", "r2", "r3"):
            if pair := rollback.taken_back(store, layout, NAME, f"weights of {run_id}"):
                left, decision = pair
                assert (left.run_id, decision.by) == (run_id, "eva")
                found[left.version] = decision.version
        assert found == wanted


def test_the_next_run_does_not_undo_a_rollback(store, base, tmp_path, rows):  # noqa: F811
    bench = Bench(store, base, tmp_path, rows)
    gate = {"mode": "non_inferior", "margin": 0.5}  # each model passes
    for run_id in ("one", "two!"):
        bench.train(run_id, 0.05, packed)
        done, verdict = bench.evaluate(run_id, **gate)
        assert done.blessed, verdict["reasons"]
        bench.publish(run_id)
    roll_back(store, bench.layout, why="wrong answers")
    bench.train("late", 0.05, packed)  # the weights of two!: the seed is the length of the name
    done, verdict = bench.evaluate("late", **gate)
    assert not done.blessed and MODEL == NAME
    (reason,) = verdict["reasons"]
    assert "version 2" in reason and "eva" in reason
    assert reason.endswith(": wrong answers")
    bench.train("last", 0.05, cooler)  # the same weights, served by another graph
    done, verdict = bench.evaluate("last", **gate)
    assert done.blessed, verdict["reasons"]
