"""`runs prune` deletes what is old, and nothing that a champion, a version or a run needs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry import prune_runs
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.run_folder import claim
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import each
from tests.local.published import VERDICT

MODEL = "pets"
NEVER = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """A store with synthetic runs.

    Attributes:
        objects: All of it, as it will be written.
        needed: What a prune must leave.
        datasets: The datasets that must stay.
    """

    store: Store
    layout: Layout
    chance: random.Random
    objects: dict[S3Address, bytes] = field(default_factory=dict)
    needed: set[S3Address] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)

    def dataset(self) -> str:
        """Return the digest of one of 40 datasets; a dataset is written at its first use."""
        digest = f"{self.chance.randrange(40):032x}"
        folder = self.layout.dataset(digest)
        for name in ("train-0.tfrecord", "schema.json", "manifest.json"):
            self.objects.setdefault(folder / name, self._bytes())
        return digest

    def run(self, number: int, stays: bool, unfinished_stays: bool) -> None:
        """Make a run: evaluated, failed or unfinished, in a folder of its own or of a template."""
        run_id = f"run-{number}"
        run = self.layout.run(run_id)
        if self.chance.random() < 0.4:
            run = claim(self.store, self.layout, run_id, f"{MODEL}/day-{number % 9}")
            record = self.layout.folder_record(run_id)
            self.objects[record] = self.store.read(record)
        task = run.task("eu") if self.chance.random() < 0.2 else run
        digest, kind = self.dataset(), self.chance.choice(["evaluated", "failed", "unfinished"])
        mine: dict[S3Address, bytes] = {run.code / "model.py": b"code"}
        launched = self.chance.random() < 0.9 or kind == "evaluated"
        if launched:
            mine[task.attempt(1)] = json.dumps({"inputs": {"data": digest}}).encode()
            mine[task.attempt_end(1)] = b"{}"
            mine[task.checkpoints / "8" / "variables.bin"] = self._bytes()
            mine[task.output / "verdict.json"] = b"a file of the user's program"
            mine[task.logs / "train" / "events"] = self._bytes()
        if kind == "evaluated":
            verdict = VERDICT | {"run_id": run_id, "dataset_digest": digest}
            mine[task.verdict] = json.dumps(verdict).encode()
            mine[task.report] = self._bytes()
        if kind == "failed":
            mine[run.failure("json")] = b"{}"
        self.objects |= mine
        if stays or (kind == "unfinished" and unfinished_stays):
            self.needed |= {*mine, self.layout.folder_record(run_id)}
            if launched:
                self.datasets.add(digest)
            elif kind == "unfinished":
                self.datasets |= {f"{it:032x}" for it in range(40)}  # nobody knows which one
        if kind == "evaluated":
            self.needed |= {task.verdict, self.layout.folder_record(run_id)}

    def write(self) -> None:
        """Write what is not there yet."""
        there = {it.address for it in self.store.list(self.layout.root)}
        missing = [it for it in self.objects if it not in there]
        for _, done in each(lambda it: self.store.write(it, self.objects[it]), missing):
            done.result()

    def expected(self) -> set[S3Address]:
        """Return what a prune leaves."""
        folders = tuple(f"{self.layout.dataset(it)}/" for it in self.datasets)
        kept = {it for it in self.objects if str(it).startswith(folders)}
        return (kept | self.needed) & self.objects.keys()

    def left(self) -> set[S3Address]:
        return {it.address for it in self.store.list(self.layout.root)}

    def _bytes(self) -> bytes:
        return self.chance.randbytes(self.chance.randrange(1, 99))


def new_world(
    store: Store, base: S3Address, seed: int, runs: int, unfinished_stays: bool
) -> tuple[World, datetime]:
    """Return a store with runs, two thirds of which were written before the time returned."""
    world = World(store, Layout(base), random.Random(seed))
    place = world.layout.model(MODEL)
    for number in range(1, 4):
        digest = world.dataset()
        record = {"version": number, "dataset_digest": digest, "run_id": "r", "metrics": {}}
        record |= {"version_uri": "s3://b/v", "weights_digest": "w", "schema_digest": "s"}
        mine = {place.champion(number): json.dumps(record | {"verdict_uri": "s3://b/u"}).encode()}
        mine[place.version(number) / "model" / "saved_model.pb"] = b"graph"
        if number == 1:
            mine[place.tombstone(1)] = b"{}"
        else:
            world.datasets.add(digest)
        world.objects |= mine
        world.needed |= mine.keys()
    for foreign in ("runs/mine/notes.txt", "runs/readme.md", "datasets/mine/a.csv", "other/b"):
        world.objects[base / foreign] = b"not of this project"
        world.needed.add(base / foreign)
    for number in range(runs * 2 // 3):
        world.run(number, False, unfinished_stays)
    world.write()
    time.sleep(2)  # the times of S3 are whole seconds
    before = datetime.now(UTC).replace(microsecond=0)
    for number in range(runs * 2 // 3, runs):
        world.run(number, True, unfinished_stays)
    known = {it.address for it in store.list(base / "datasets")}
    young = {it for it in world.objects if it not in known and f"{base}/datasets/" in str(it)}
    world.needed |= young
    world.write()
    return world, before


def prune_all(world: World, before: datetime, unfinished: datetime) -> None:
    """Prune, and compare what is left with what is needed, and the bytes with the forecast."""
    sizes = {it.address: it.size for it in world.store.list(world.layout.root)}
    planned = prune_runs.plan(world.store, world.layout, before, unfinished)
    assert world.left() == sizes.keys()  # a plan changes nothing
    done = list(prune_runs.execute(world.store, world.layout, before, unfinished))
    assert tuple(done) == planned.candidates
    left = world.left()
    freed = sum(size for address, size in sizes.items() if address not in left)
    assert freed == sum(it.size for it in planned.candidates)
    assert left == world.expected()
    assert not prune_runs.plan(world.store, world.layout, before, unfinished).candidates


@pytest.mark.parametrize(("seed", "unfinished_stays"), [(1, True), (2, False)])
def test_nothing_needed_is_gone(
    store: Store, base: S3Address, seed: int, unfinished_stays: bool
) -> None:
    world, before = new_world(store, base, seed, 30, unfinished_stays)
    prune_all(world, before, NEVER if unfinished_stays else before)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "unfinished_stays"), [(4, False), (5, True)])
def test_nothing_needed_of_a_thousand_runs_is_gone_after_kills(
    store: Store, base: S3Address, seed: int, unfinished_stays: bool
) -> None:
    world, before = new_world(store, base, seed, 1000, unfinished_stays)
    unfinished = NEVER if unfinished_stays else before
    code = (
        "import sys; from datetime import datetime; from kfp_tfjob.registry import prune_runs;"
        " from kfp_tfjob.storage.layout import Layout; from kfp_tfjob.storage.store import Store;"
        " times = map(datetime.fromisoformat, sys.argv[2:]);"
        " list(prune_runs.execute(Store(), Layout.parse(sys.argv[1]), *times))"
    )
    arguments = (str(base), before.isoformat(), unfinished.isoformat())
    before_kills = len(world.left())
    for number in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, *arguments])
        target = len(world.left()) - 20 * (number + 1)
        while len(world.left()) > target and process.poll() is None:
            time.sleep(0.2)
        process.kill()
        assert process.wait() != 0, "it was not killed in the middle"
    assert world.expected() <= world.left()
    assert len(world.left()) < before_kills
    prune_all(world, before, unfinished)


def test_the_command(store: Store, base: S3Address, s3: Server) -> None:
    layout = Layout(base)
    run = RunLayout(layout.run("r1").base)
    store.write(run.checkpoints / "8" / "variables.bin", b"x" * 2000)
    store.write(run.failure("json"), b"{}")
    arguments = ["runs", "prune", "--output", str(base), "--endpoint", s3.endpoint]
    done = CliRunner().invoke(main, [*arguments, "--older-than", "1d", "--apply", "--json"])
    assert json.loads(done.output) == {"applied": True, "deleted": [], "kept": {}}
    later = datetime.now(UTC) + timedelta(days=2)
    assert [it.name for it in prune_runs.plan(store, layout, later, later).candidates] == ["r1"]
    for wrong in ("90m", "0", "-1d", ""):
        done = CliRunner().invoke(main, [*arguments, "--older-than", wrong])
        assert done.exit_code == 2 and "--older-than is not a number of days" in done.output
