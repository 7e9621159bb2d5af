"""publish after what a person did meanwhile: a promotion, a rollback."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError, StepError
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.publish import engine, manual_promotion
from kfp_tfjob.components.publish.model_artifact import published_model
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import summary
from kfp_tfjob.registry import rollback
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.verdict_record import ModelVerdict, lost_race, save_second, verdict_in_force
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import NAME, judged, publish, roll_back
from tests.local.test_evaluate_publish import MODEL, Bench, cooler, packed
from tests.local.test_evaluate_publish import rows as rows  # a fixture


@pytest.mark.parametrize("when", ["before publish", "while judged again", "after another champion"])
def test_a_person_was_first(
    store: Store, layout: Layout, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = judged(store, layout, "mine", tmp_path / "mine", blessed=True)
    step = Step("publish", "mine", layout, store)

    def promote() -> None:
        planned = manual_promotion.plan(step, NAME)
        manual_promotion.execute(step, planned, "eva", "it is needed now")

    def again(*_: object) -> ModelVerdict:
        assert when == "while judged again", "judged against itself"
        promote()
        save_second(store, step.run, replace(verdict, blessed=False, champion=None))
        return verdict_in_force(store, step.run)

    if when == "before publish":
        promote()
        publish(store, layout, "r2")  # and another champion came after it
    else:
        publish(store, layout, "r2")
    if when == "after another champion":
        promote()
    where = (str(step.run.verdict), verdict.dataset_uri)
    monkeypatch.setattr(engine, "evaluate_again", again)
    done = engine.run(step, NAME, verdict.model_uri, *where)
    number = 1 if when == "before publish" else 2
    record = json.loads(store.read(layout.model(NAME).champion(number)))
    assert (record["action"], record["run_id"]) == ("promote", "mine")
    assert (done.outcome, done.version) == ("published", record["version"])
    assert done.version_uri == record["version_uri"]
    assert done.champion_uri == str(layout.model(NAME).champion(number))
    assert "needed" in done.card
    card = published_model(step, NAME, done)
    assert card.champion is (when != "before publish")
    assert (card.version, card.reason) == (record["version"], "it is needed now")
    assert lost_race(store, step.run) is None
    newest = read_champion(store, layout, NAME)
    assert newest is not None and newest.number == 2  # no record of its own
    assert finish.run(step, NAME).failure is None
    assert summary(step, NAME).startswith(f"# Published: `{NAME}`, version {record['version']}")


def test_a_version_with_another_verdict_is_not_published(
    store: Store, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's promotion was killed, and then the run was continued with another gate."""
    judged(store, layout, "mine", tmp_path / "first", blessed=False)
    step = Step("publish", "mine", layout, store)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(manual_promotion, "promote", killed)
        planned = manual_promotion.plan(step, NAME)
        manual_promotion.execute(step, planned, "eva", "it is needed now")
    verdict = judged(store, layout, "mine", tmp_path / "second", blessed=True)
    done = engine.run(step, NAME, verdict.model_uri, str(step.run.verdict), verdict.dataset_uri)
    proven = verify_champion(store, layout, NAME)
    assert proven and proven.verdict.blessed and proven.champion.version == done.version == 2


@pytest.mark.parametrize("body", [b"", b"[]", b'{"blessed": true}'])
def test_a_verdict_that_is_none_is_said(
    store: Store, layout: Layout, tmp_path: Path, body: bytes
) -> None:
    verdict = judged(store, layout, "mine", tmp_path / "mine", blessed=True)
    step = Step("publish", "mine", layout, store)
    given = (step, NAME, verdict.model_uri, str(step.run.verdict), verdict.dataset_uri)
    store.write(step.run.second_verdict, body)
    with pytest.raises(DataError, match=r"verdict-2.json(.|\n)*Fix: "):
        engine.run(*given)
    store.delete(step.run.second_verdict)
    store.write(step.run.verdict, body)
    with pytest.raises(DataError, match=r"verdict.json(.|\n)*Fix: "):
        manual_promotion.plan(step, NAME)
    with pytest.raises(StepError, match="verdict.json"):
        engine.run(*given)
    assert read_champion(store, layout, NAME) is None


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
    # With another schema, the same weights are another model.
    bench.write_dataset("d2", "s2")
    done, verdict = bench.evaluate("late", "d2", **gate, incompatible_champion="treat_as_first")
    assert done.blessed, verdict["reasons"]
    bench.train("last", 0.05, cooler)  # the same weights, served by another graph
    done, verdict = bench.evaluate("last", **gate)
    assert done.blessed, verdict["reasons"]
