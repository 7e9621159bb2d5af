"""What `runs prune` deletes: nothing that is needed, everything else, and as many bytes as told."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.pipelines.local.home import BUCKET
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry import prune_runs
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.environments import run_python
from tests.local.laptop import kfp_tfjob
from tests.local.prune_world import NOW, Memory, Run, needed, store_runs

DAY = 86400
LAYOUT = Layout(S3Address("bucket", "out"))
OUTCOMES = ("published", "pruned", "lost", "lost", "failed", "unended")
RUNS = st.builds(
    Run,
    days=st.integers(0, 200),
    outcome=st.sampled_from(OUTCOMES),
    dataset=st.integers(0, 9),
    shaped=st.booleans(),
    remembered=st.booleans(),
    task=st.sampled_from(["", "", "b"]),
)


def prune(store: Any, layout: Layout = LAYOUT, days: float = 90) -> tuple[int, list[str]]:
    """Prune; return the forecast in bytes, and what was not deleted after all."""
    planned = prune_runs.plan(store, layout, days * DAY)
    done = list(prune_runs.execute(store, layout, planned))
    return sum(it.size for it in planned), [why for _, why in done if why]


def size(store: Memory) -> int:
    return sum(len(data) for data, _ in store.objects.values())


@settings(max_examples=60)  # of 20 runs: more than 1,000
@given(st.lists(RUNS, min_size=20, max_size=20))
def test_nothing_needed_is_gone_and_the_forecast_is_exact(runs: list[Run]) -> None:
    runs = sorted(runs, key=lambda run: -run.days)
    store: Any = Memory()
    store_runs(store, LAYOUT, runs)
    before, first = size(store), dict(store.objects)
    forecast, whys = prune(store)
    assert not whys
    assert before - size(store) == forecast
    keep = tuple(needed(LAYOUT, runs, 90))
    lost = [it.key for it in first.keys() - store.objects.keys() if it.key.startswith(keep)]
    assert not lost
    useless = [it.key for it in store.objects if not it.key.startswith(keep)]
    assert not useless
    assert prune(store) == (0, [])


@settings(max_examples=60)
@given(st.lists(RUNS, min_size=3, max_size=8), st.integers(0, 60))
def test_the_next_prune_finishes_one_that_was_killed(runs: list[Run], deletions: int) -> None:
    runs = sorted(runs, key=lambda run: -run.days)
    whole: Any = Memory()
    killed: Any = Memory()
    for store in (whole, killed):
        store_runs(store, LAYOUT, runs)
    prune(whole)
    left = iter(range(deletions))
    delete = killed.delete

    def dies(address: S3Address) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        delete(address)

    killed.delete = dies
    try:
        prune(killed)
    except (KeyboardInterrupt, RuntimeError):
        pass
    killed.delete = delete
    killed.now += timedelta(minutes=11)
    prune(killed)
    assert killed.objects.keys() == whole.objects.keys()


def test_a_dataset_that_a_run_has_just_begun_to_use_stays() -> None:
    store: Any = Memory()
    store_runs(store, LAYOUT, [Run(100, "failed")])
    planned = prune_runs.plan(store, LAYOUT, 90 * DAY)
    assert [it.kind for it in planned] == ["run", "dataset"]
    digest = Run(0, "").digest
    prune_runs.use_dataset(store, LAYOUT, digest, "new")
    whys = [why for _, why in prune_runs.execute(store, LAYOUT, planned)]
    assert [bool(why) for why in whys] == [False, True]
    assert [*store.list(LAYOUT.dataset(digest))]
    assert not store.has(LAYOUT.dataset_tombstone(digest))
    assert prune(store) == (0, [])


def test_a_run_waits_while_its_dataset_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = Memory()
    tombstone = LAYOUT.dataset_tombstone("d")
    store.write(tombstone, b"{}")
    store.write(LAYOUT.dataset("d") / "train-00000.tfrecord", b"1")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        store.now += timedelta(minutes=4)

    monkeypatch.setattr(time, "sleep", sleep)
    prune_runs.use_dataset(store, LAYOUT, "d", "new")
    assert len(waits) == 3  # that prune was killed
    assert not store.has(tombstone) and store.has(LAYOUT.dataset_in_use("d"))


@pytest.mark.parametrize("act", [lambda run: run.progress, lambda run: run.failure("json")])
def test_a_run_that_continues_after_the_plan_stays(act: Callable[..., S3Address]) -> None:
    store: Any = Memory()
    store_runs(store, LAYOUT, [Run(100, "failed")])
    planned = prune_runs.plan(store, LAYOUT, 90 * DAY)
    store.write(act(LAYOUT.run("run-0000")), b"{}")
    before = store.objects.keys() - {LAYOUT.dataset_tombstone(Run(0, "").digest)}
    ((_, why), _) = prune_runs.execute(store, LAYOUT, planned)
    assert why
    assert {it for it in before if "run-0000" in it.key} <= store.objects.keys()


@pytest.mark.parametrize("task", ["", "b"])
def test_a_new_attempt_that_waits_in_a_queue_stays(task: str) -> None:
    """An earlier attempt, or another task of the run, has ended."""
    store: Any = Memory()
    store_runs(store, LAYOUT, [Run(100, "lost" if task else "failed", task="a" if task else "")])
    store.now = NOW - timedelta(days=95)
    claim = json.dumps({"attempt": 2, "inputs": {"data": Run(0, "").digest}}).encode()
    store.write(LAYOUT.run("run-0000").task(task).attempt(2), claim)
    store.now = NOW
    assert prune(store) == (0, [])


def test_objects_of_a_folder_without_a_readable_record_stay() -> None:
    store: Any = Memory()
    store_runs(store, LAYOUT, [Run(200, "failed", shaped=True)])
    store.objects[LAYOUT.folder_record("run-0000")] = b"damaged", NOW - timedelta(days=200)
    runs = {it for it in store.objects if "/runs/" in it.key}
    prune(store)
    assert runs <= store.objects.keys()


_PRUNE = """
import sys
from kfp_tfjob.registry import prune_runs
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
store, layout = Store(), Layout(S3Address.parse(sys.argv[1]))
for it, why in prune_runs.execute(store, layout, prune_runs.plan(store, layout, -60)):
    print(it.size, it.kind, it.name, why, flush=True)
"""


@pytest.mark.slow
def test_sigkill_of_a_prune_in_a_real_store(store: Store, base: S3Address) -> None:
    """All objects are new, so it prunes what will be older than minus one minute."""
    layout = Layout(base)
    outcomes = ("failed", "lost", "published")
    runs = [Run(0, outcomes[at % 3], at % 20, shaped=at % 2 == 0) for at in range(40)]
    written = Memory()
    store_runs(written, layout, runs)
    for address, (data, _) in written.objects.items():
        store.write(address, data)
    command = [sys.executable, "-c", _PRUNE, str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    second = run_python(*command[1:])
    assert second.returncode == 0 and "less than 10 minutes" not in second.stdout
    whole: Any = Memory()
    whole.objects = dict(written.objects)
    prune(whole, layout, -1 / 1440)
    assert {it.address for it in store.list(base)} == whole.objects.keys()


@pytest.mark.slow
def test_the_command_refuses_while_a_local_run_uses_the_folder(tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kfp_tfjob("runs", "prune", "--home", tmp_path).exit_code == 2
    done = kfp_tfjob("runs", "prune", "--home", tmp_path, "--older-than", "6d")
    assert done.exit_code == 2 and "at least 7d" in done.output
    with Server.start(tmp_path / "s3") as server:
        server.store().make_bucket(BUCKET)
    done = kfp_tfjob("runs", "prune", "--home", tmp_path)
    assert done.exit_code == 0 and "would delete 0 objects" in done.output
