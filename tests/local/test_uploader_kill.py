"""Whenever the sidecar is killed, the prefix alone gives back a whole and recent checkpoint."""

import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader import pull
from tests.faults.proxy import FaultProxy
from tests.faults.world import content
from tests.local.sidecar import Pod
from tests.waiting import until

PROOF, KEPT = 200, 4
# Seconds between two checkpoints. The short run shares the machine with other tests, and what is
# sent has to be on the way for less than four pauses.
PAUSES = {3: 0.8, PROOF: 0.3}
# Shows a checkpoint by a rename after each pause, now and then one that is sent in parts, and keeps
# four.
# The next one is ready in memory before its time comes, and where that is allowed the process
# takes the core at any time: neither a busy disk nor other work delays it.
TRAINER = f"""
import os, shutil, sys, time
from contextlib import suppress
from itertools import count
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.local.test_uploader_kill import KEPT, files_of

with suppress(PermissionError):
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
output = Path(sys.argv[1]) / "checkpoints"
output.mkdir()
due = time.monotonic()
for step in count(1):
    temporary = output / f"{{step}}.tmp"
    temporary.mkdir()
    for name, data in files_of(step).items():
        (temporary / name).write_bytes(data)
    time.sleep(max(0, due - time.monotonic()))
    temporary.rename(output / str(step))
    due = time.monotonic() + float(sys.argv[2])
    shutil.rmtree(output / str(step - KEPT), ignore_errors=True)
"""


def files_of(step: int) -> dict[str, bytes]:
    """Return what the checkpoint of a step holds: judging a restore takes no trainer."""
    files = {f"shard {n}": f"{step}/{n};".encode() * (2000 + step % 7) for n in range(3)}
    if step % 8 == 0:
        files["large"] = f"large {step};".encode() * (PART // 8)
    return files


def acknowledged(proxy: FaultProxy, before: float) -> int:
    """Return the newest step whose manifest the store confirmed before a moment."""
    found = [
        int(seen.target.split("/")[-2])
        for seen in proxy.of("PUT", "/checkpoints/[0-9]+/manifest.json")
        if seen.status == 200 and seen.ended <= before
    ]
    return max(found, default=0)


def restore(store: Store, run: RunLayout, folder: Path) -> int:
    """Bring back the newest checkpoint that proves whole; 0 where there is none."""
    for step in reversed(store.numbers(run.checkpoints)):
        try:
            pull(store, run.checkpoints / str(step), folder)
        except DataError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        assert content(folder) == files_of(step), f"checkpoint {step} is not what the trainer wrote"
        shutil.rmtree(folder)
        return step
    return 0


@pytest.fixture
def pod(kills: int, proxy: FaultProxy, base: S3Address) -> Iterator[Pod]:
    """A pod with a trainer that writes checkpoints."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        pod = Pod(Path(folder), RunLayout(base / "runs" / "killed"), proxy.endpoint)
        pod.start([sys.executable, "-c", TRAINER, str(pod.output), str(PAUSES[kills])])
        yield pod
        pod.stop()


@pytest.mark.parametrize("kills", [3, pytest.param(PROOF, marks=pytest.mark.slow)])
def test_a_kill_loses_nothing(
    kills: int, proxy: FaultProxy, store: Store, pod: Pod, tmp_path: Path
) -> None:
    proxy.latency = 0.08  # of a store at some distance: most moments have a request in flight
    chance = random.Random(6)
    kill_after(pod, proxy, 1)  # from here on every kill has something to lose
    last, at_work = 1, 0
    for _ in range(kills):
        last, flying = one_kill(proxy, store, pod, tmp_path / "copy", chance)
        assert last >= 1
        at_work += flying
    assert at_work >= 150 or kills < PROOF, "too many kills hit nothing"
    kill_after(pod, proxy, last + 1)


def kill_after(pod: Pod, proxy: FaultProxy, step: int) -> None:
    """Kill a sidecar once a checkpoint of this step or a later one is stored."""
    sidecar = pod.sidecar()
    until(lambda: acknowledged(proxy, time.monotonic()) >= step, f"checkpoint {step} is stored")
    sidecar.kill()
    sidecar.wait()


def one_kill(
    proxy: FaultProxy, store: Store, pod: Pod, copy: Path, chance: random.Random
) -> tuple[int, bool]:
    """Kill a sidecar at a random moment, and restore.

    Returns:
        The newest step that was confirmed, and whether a request was on its way.
    """
    with proxy.lock:
        proxy.seen = [seen for seen in proxy.seen if "manifest.json" in seen.target][-50:]
    born = time.monotonic()
    sidecar = pod.sidecar()
    # Most die at work, some while they look at what an earlier life left.
    awaited = "/checkpoints/" if chance.random() < 0.8 else "probe"
    while not proxy.of("PUT", awaited + ".*(?<!manifest.json)$") and time.monotonic() < born + 30:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 1))
    moment = time.monotonic()
    sidecar.kill()
    sidecar.wait()
    while proxy.in_flight() and time.monotonic() < moment + 10:
        time.sleep(0.01)
    with proxy.lock:
        flying = any(it.began <= moment and not it.ended <= moment for it in proxy.seen)
    least = acknowledged(proxy, moment)
    restored = restore(store, pod.run, copy)
    assert restored >= least, f"step {least} was stored, {restored} came back"
    return least, flying
