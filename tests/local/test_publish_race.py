"""Publishers that race, and publishers that are killed: one champion, and always a readable one."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from kfp_tfjob.components.notify_end import of_end
from kfp_tfjob.components.publish import engine as publish
from kfp_tfjob.components.summary import summary
from kfp_tfjob.registry.chain import verify_champion
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.verdict_record import (
    LostRace,
    ModelVerdict,
    lost_race,
    save_lost_race,
    save_second,
    second_verdict,
    verdict_in_force,
)
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, run_python
from tests.local.test_evaluate_publish import MODEL, Bench, packed
from tests.local.test_evaluate_publish import rows as rows  # a fixture

GATE = {"mode": "non_inferior", "margin": 0.5}  # each model passes, so only the race decides
SERVERS = ["s3", "versitygw"]
SECONDS = 600.0  # for the slowest publisher; only what hangs reaches it


@pytest.fixture
def bench(request, base, tmp_path, rows: SimpleNamespace, monkeypatch) -> Bench:  # noqa: F811
    """A bench on the server of the parameter; on the first one without a parameter."""
    server = request.getfixturevalue(getattr(request, "param", "s3"))
    monkeypatch.setenv(MOUNT_VARIABLE, str(server.secret))
    return Bench(Store(), base, tmp_path, rows)


def prepare(bench: Bench, names: list[str]) -> None:
    """Train a different model in each run, and bless all of them as the first one was."""
    for at, name in enumerate(names):
        bench.train(name, 0.05 + 0.01 * at, packed)
    done, first = bench.evaluate(names[0], **GATE)
    assert done.blessed and first["champion"] is None
    for name in names[1:]:
        bless_as(bench, name, first)


def bless_as(bench: Bench, name: str, first: dict) -> None:
    """Give a run the verdict of another one, about its own model."""
    from kfp_tfjob.judging.model import exported_weights_sha256

    run = bench.layout.run(name)
    verdict = first | {
        "run_id": name,
        "model_uri": bench.model_uri(name),
        "model_digest": bench.store.read_manifest(run.manifest).digest,
        "exported_weights_sha256": exported_weights_sha256(
            bench.folder / name / "output" / "model"
        ),
    }
    bench.store.write(run.verdict, json.dumps(verdict).encode())


def race(bench: Bench, names: list[str]) -> dict[str, publish.Published]:
    """Publish all runs at once; those that lose are judged again, and then try at once again."""
    # TensorFlow judges one after the other, as processes of their own would not.
    judging, evaluate_again = threading.Lock(), publish.evaluate_again
    start = threading.Barrier(len(names), timeout=SECONDS)
    second = threading.Barrier(len(names) - 1, timeout=SECONDS)

    def again(*arguments: Any) -> ModelVerdict:
        with judging:
            found = evaluate_again(*arguments)
        second.wait()
        return found

    def attempt(name: str) -> publish.Published:
        step = replace(bench.step(name), store=Store())
        arguments = (MODEL, bench.model_uri(name), str(step.run.verdict), str(bench.dataset))
        start.wait()
        return publish.run(step, *arguments)

    with (
        patch.object(publish, "evaluate_again", again),
        ThreadPoolExecutor(len(names)) as pool,
    ):
        return dict(zip(names, pool.map(attempt, names), strict=True))


def assert_one_champion(bench: Bench, found: dict[str, publish.Published]) -> None:
    """Two records for two rounds; versions with their own numbers; the loser knows it."""
    won = {name: one for name, one in found.items() if one.outcome == "published"}
    lost = {name: one for name, one in found.items() if one.outcome == "lost_race"}
    assert Counter(one.outcome for one in found.values()) == {
        "published": 2,
        "lost_race": len(found) - 2,
    }
    place = bench.layout.model(MODEL)
    assert bench.store.numbers(place.champions) == [1, 2]
    assert len({one.version for one in won.values()}) == 2
    champion = read_champion(bench.store, bench.layout, MODEL)
    assert champion is not None and champion.version_uri == won[champion.run_id].version_uri
    second = second_verdict(bench.store, bench.layout.run(champion.run_id))
    assert second is not None and second.met == 1
    assert champion.verdict_uri == str(bench.layout.run(champion.run_id).second_verdict)
    proven = verify_champion(bench.store, bench.layout, MODEL)
    assert proven is not None and (proven.verdict.again or {})["number"] == 1
    served = bench.store.numbers(place.serving)
    assert served[-1] == proven.serving
    for name, one in lost.items():
        assert (one.version, one.version_uri, one.champion_uri) == (0, "", "")
        record = lost_race(bench.store, bench.layout.run(name))
        assert record is not None and (record.code, record.number) == (6, 2)
        assert record.run_id == champion.run_id


def test_a_retry_reports_the_record_although_its_version_was_pruned(bench: Bench) -> None:
    prepare(bench, ["one"])
    step = bench.step("one")
    arguments = (MODEL, bench.model_uri("one"), str(step.run.verdict), str(bench.dataset))
    first = publish.run(step, *arguments)
    bench.store.write(bench.layout.model(MODEL).tombstone(first.version), b"{}")
    retry = publish.run(step, *arguments)
    assert (retry.version, retry.version_uri) == (1, first.version_uri)
    assert retry.champion == first.champion


def test_who_loses_the_race_is_judged_once_more(bench: Bench) -> None:
    names = ["one", "two!", "three"]
    prepare(bench, names)
    found = race(bench, names)
    assert_one_champion(bench, found)
    loser = next(name for name, one in found.items() if one.outcome == "lost_race")
    step = bench.step(loser)
    # A retry judges nothing again, and publishes nothing.
    arguments = (MODEL, bench.model_uri(loser), str(step.run.verdict), str(bench.dataset))
    with patch.object(publish, "evaluate_again", pytest.fail):
        assert publish.run(step, *arguments) == found[loser]
    shown = summary(step, MODEL)
    assert shown.startswith("# ") and "`pets`" in shown.splitlines()[0]
    assert "**Evaluated again:**" in shown
    notice = of_end(step, MODEL)
    assert (notice.outcome, notice.code, notice.verdict) == ("lost the race", 6, "lost_race")
    assert "new run" in notice.remedy
    # A retry of the first winner finds itself, and changes nothing; its version has any number.
    newest = read_champion(bench.store, bench.layout, MODEL)
    won = {name for name, one in found.items() if one.outcome == "published"}
    (winner,) = won - {newest.run_id}
    before = bench.store.numbers(bench.layout.model(MODEL).versions)
    assert bench.publish(winner) == found[winner]
    assert bench.store.numbers(bench.layout.model(MODEL).versions) == before


def test_a_second_verdict_may_refuse(bench: Bench) -> None:
    prepare(bench, ["first"])
    bench.train("twin", 0.05, packed)  # the same weights: the seed is the length of the name
    bench.train("again", 0.05, packed)
    bless_as(bench, "again", json.loads(bench.store.read(bench.layout.run("first").verdict)))
    assert bench.publish("first").outcome == "published"
    done = bench.publish("again")
    assert done.outcome == "not_blessed" and done.version == 0
    assert "champion 1" in done.card
    artifact = bench.publish_as_component("again")
    run = bench.layout.run("again")
    verdict = verdict_in_force(bench.store, run)
    assert Path(artifact.path).read_text() == done.card
    # Nothing that looks like a version.
    assert artifact.metadata == {
        **{"run_id": "again", "step": "publish", "model_name": MODEL, "outcome": "not_blessed"},
        **{"champion": False, "reason": f"evaluated again: {verdict.reason}"},
        **{"verdict_uri": str(run.second_verdict), "trained_manifest_sha256": verdict.model_digest},
        **{"dataset_digest": verdict.dataset_digest, "schema_digest": verdict.schema_digest},
    }
    assert "champion 1" in summary(bench.step("again"), MODEL)
    assert bench.store.numbers(bench.layout.model(MODEL).champions) == [1]


def test_a_new_evaluation_replaces_what_an_earlier_try_lost(bench: Bench) -> None:
    """`run --run-id` may continue a run with another gate."""
    prepare(bench, ["one"])
    winner = bench.publish("one")
    bench.train("two!", 0.0, packed)
    bench.evaluate("two!", **GATE)
    run = bench.layout.run("two!")
    first = ModelVerdict.read(bench.store, run.verdict)
    save_second(bench.store, run, replace(first, blessed=False, reasons=("worse",)))
    champion = read_champion(bench.store, bench.layout, MODEL)
    assert champion is not None
    save_lost_race(bench.store, run, LostRace.to(champion, MODEL))
    again, verdict = bench.evaluate("two!", **GATE)
    assert again.blessed and json.loads(bench.store.read(run.verdict)) == verdict
    assert not verdict_in_force(bench.store, run).is_second
    assert lost_race(bench.store, run) is None
    done = bench.publish("two!")
    assert (done.outcome, done.version) == ("published", winner.version + 1)


@pytest.mark.slow
@pytest.mark.parametrize("bench", SERVERS, indirect=True)
def test_fifty_publishers_at_once(bench: Bench) -> None:
    names = [f"run-{number:02d}{'x' * number}" for number in range(50)]
    prepare(bench, names)
    assert_one_champion(bench, race(bench, names))


_KILLS = """
import json, sys
from kfp_tfjob.components.publish import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.dying import apart, die_at

root, before, after, dataset, points = sys.argv[1:]
layout = Layout.parse(root)


def publish(name, run_id, at="", done=False):
    store, run = Store(), layout.run(run_id)
    verdict = json.loads(store.read(run.verdict)) | {"model_name": name}
    if run_id == after:
        verdict["champion"] = {"number": 1, "version": 1, "run_id": before}
    address = S3Address.parse(f"{root}/verdicts/{name}-{run_id}.json")
    store.write(address, json.dumps(verdict).encode())
    written = die_at(at, done)
    step = Step("publish", run_id, layout, store)
    engine.run(step, name, str(run.model), str(address), dataset)
    return len(written)


if points == "all":
    apart(publish, "all", before)
    points = ",".join(map(str, range(1, apart(publish, "all", after)[1] + 1)))
for number, at in enumerate(points.split(",")):
    for done in (False, True):
        name = f"killed-{number}-{done}".lower()
        apart(publish, name, before)
        print(json.dumps([name, apart(publish, name, after, at, done)[0]]), flush=True)
"""


def killed(bench: Bench, points: str) -> Iterator[str]:
    prepare(bench, ["before", "after!"])
    done = run_python(
        *("-c", _KILLS, bench.layout.root, "before", "after!", bench.dataset, points), cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for name, code in lines:
        assert code == -9, name
        yield name


def assert_readable(bench: Bench, name: str) -> None:
    """The champion is the old or the new one; a retry makes it the new one, and serves it."""
    champion = verify_champion(bench.store, bench.layout, name)
    assert champion is not None and champion.champion.run_id in ("before", "after!")
    verdict = S3Address.parse(f"{bench.layout.root}/verdicts/{name}-after!.json")
    arguments = (name, bench.model_uri("after!"), str(verdict), str(bench.dataset))
    done = publish.run(bench.step("after!"), *arguments, pytest.fail)
    assert done.outcome == "published"
    champion = verify_champion(bench.store, bench.layout, name)
    assert champion is not None and champion.champion.run_id == "after!"
    place = bench.layout.model(name)
    assert bench.store.numbers(place.champions) == [1, 2]
    assert bench.store.numbers(place.versions) == [1, 2]
    assert bench.store.numbers(place.serving) == [1, 2]
    bench.store.head(place.servable(2) / "saved_model.pb")


def test_a_killed_publisher_leaves_a_readable_champion(bench: Bench) -> None:
    models = list(killed(bench, "champions/2.json"))
    assert len(models) == 2
    for name in models:
        assert_readable(bench, name)


@pytest.mark.slow
@pytest.mark.parametrize("bench", SERVERS, indirect=True)
def test_a_publisher_killed_at_every_write(bench: Bench) -> None:
    count = 0
    for name in killed(bench, "all"):
        assert_readable(bench, name)
        count += 1
    assert count >= 30
