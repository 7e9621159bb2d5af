"""prepare_data is killed at random moments, and ends in the same bytes.

`make test-prepare` runs the long proof.
"""

import logging
import random
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kfp_tfjob.common.errors import DataError, StepError
from kfp_tfjob.components.prepare_data import engine, row_requirements
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import WORK, Layout
from kfp_tfjob.storage.store import Store
from tests.local.dask_cluster import dask_cluster
from tests.local.planted import refusal, where
from tests.local.prepare_attempts import attempts, digests

log = logging.getLogger(__name__)

PARTS, KILLS = 4, 13  # kills of each executor and kind of table in the long proof
CITIES = ("Rome", "Zürich", "Lagos", "")
EXECUTORS = {"inline": {"workers": 1}, "processes": {"workers": 3}, "dask": {}}


def rows(kind: str, count: int) -> bytes:
    draw = random.Random(7)
    lines = ["a,b,c,d,y\n"]
    for i in range(count):
        cells = [f"{draw.gauss(0, 1):.6f}", str(draw.randrange(9))]
        if kind == "mixed":
            cells += [draw.choice(CITIES), f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d}"]
        else:
            cells += [f"{draw.random():.3f}", str(i)]
        lines.append(",".join([*cells, draw.choice("uv")]) + "\n")
    return "".join(lines).encode()


@pytest.fixture
def step(store: Store, base: S3Address, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setattr(engine, "_LARGE", 0)
    store.write(base / "f.csv", rows("mixed", 200))
    return Step("prepare_data", "r1", Layout(base / "out"), store)


def prove(step: Step, folder: Path, kind: str, executor: str, kills: int, count: int) -> None:
    """Kill tries of the step until there were so many kills; the dataset has the usual bytes."""
    store, base, data = step.store, step.layout.root, rows(kind, count)
    store.write(base / "f.csv", data)
    given = (str(base / "f.csv"), {})
    how = {"part": len(data) // PARTS, **EXECUTORS[executor]}
    whole = Step(step.name, step.run_id, Layout(base / "whole"), store)
    begin = time.monotonic()
    engine.run(whole, given[0], "y", given[1], part=how["part"], workers=1)
    within = time.monotonic() - begin  # nothing disturbs it
    expected = digests(store, base / "whole")
    with attempts(folder / "scratch", kills) as tries, ExitStack() as stack:
        number = 0
        if executor == "dask":
            cluster = stack.enter_context(dask_cluster(folder))
            tries.workers = psutil.Process(cluster.add("--nanny", "--nworkers", "3").pid)
            given[1]["dask"] = cluster.address
        if executor in ("processes", "dask"):  # starting them takes longer than the work
            within = tries.finish(base / "first", *given, how)
            assert digests(store, base / "first") == expected
        while len(tries.killed) < kills:
            out = base / f"killed{number}"
            for _ in range(3):
                tries.kill(out, *given, how, within)
            tries.finish(out, *given, how)
            assert digests(store, out) == expected
            number += 1
    log.info("%s, %s: %s", kind, executor, tries.killed)


def test_a_step_that_is_killed_ends_in_the_same_bytes(step, tmp_path):
    prove(step, tmp_path, "mixed", "inline", kills=2, count=600)


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["mixed", "numbers"])
def test_many_kills(step, tmp_path, kind, executor):
    prove(step, tmp_path, kind, executor, kills=KILLS, count=20_000)


@pytest.mark.parametrize("run_id", ["r1", "r2"])
def test_two_runs_or_tasks_of_the_same_dataset_at_once(step, store, base, monkeypatch, run_id):
    uri, whole, others = str(base / "f.csv"), row_requirements.decide, []
    other = replace(step, run_id=run_id)

    def decide(*given):
        monkeypatch.undo()
        monkeypatch.setattr(engine, "_LARGE", 0)
        others.append(engine.run(other, uri, "y", {}))  # it begins later and is done earlier
        return whole(*given)

    monkeypatch.setattr(row_requirements, "decide", decide)
    done = engine.run(step, uri, "y", {})
    assert done.dataset_uri == others[0].dataset_uri
    assert not [name for name in digests(store, base / "out") if f"/{WORK}/" in name]


def test_bad_data_leaves_no_work_behind(step, store, base):
    store.write(base / "f.csv", rows("mixed", 200) + b"1,2,Rome,today,u\n")
    assert where("d", "today", "date", line=202) in refusal(step, str(base / "f.csv"))


def test_a_store_that_deletes_nothing_hides_no_fault(step, store, base, monkeypatch):
    def refuse(self, address):
        raise StepError("no right to delete")

    monkeypatch.setattr(Store, "delete", refuse)
    store.write(base / "f.csv", rows("mixed", 200) + b"1,2,Rome,today,u\n")
    with pytest.raises(DataError, match="'today'"):
        engine.run(step, str(base / "f.csv"), "y", {})
