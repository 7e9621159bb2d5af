"""The sidecar as a process among faults: who owns the run, and how it ends.

`make test` runs a part of it, `make test-uploader` all.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import PART
from kfp_tfjob.uploader.ownership import FencedError, Ownership
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy
from tests.local.sidecar import RUN, SECONDS, Pod
from tests.waiting import until

EVER = float("inf")


@pytest.fixture
def run(base) -> RunLayout:
    return RunLayout(base / "runs" / RUN)


@pytest.fixture
def pod(tmp_path: Path, run: RunLayout, proxy: FaultProxy) -> Iterator[Pod]:
    pod = Pod(tmp_path / "pod", run, proxy.endpoint)
    yield pod
    pod.stop()


def test_an_older_attempt_publishes_nothing_any_more(pod, store, run, proxy):
    sidecar = pod.sidecar()
    pod.checkpoint(1)
    pod.says("stored checkpoint 1")

    # The next attempt is claimed while the data of a checkpoint is on its way.
    claimed = threading.Event()

    def claim() -> None:
        store.create(run.attempts / "0002.json", b'{"run_id": "run-1", "attempt": 2}')
        claimed.set()

    proxy.faults = [Fault(faults.midway(claim), target="/checkpoints/2/data")]
    pod.checkpoint(2, os.urandom(1_000_000))
    until(claimed.is_set, "the claim")
    pod.says("attempt 2 owns this run")
    pod.checkpoint(3)
    pod.complete()
    pod.request("late")
    pod.wait_for("late", "storing", "attempt 2 owns this run")
    assert pod.steps(store) == [1]
    assert pod.end(sidecar) == 2
    assert pod.steps(store) == [1]
    with pytest.raises(ObjectNotFoundError):
        store.read_manifest(run.manifest)
    restarted = pod.sidecar()
    pod.says("attempt 2 owns this run", 2)
    assert pod.end(restarted) == 2


def test_a_pod_that_was_replaced_does_not_take_the_run_back(store, run, tmp_path):
    def uploader(folder: str) -> Ownership:
        return Ownership(store, run, "r1", 1, tmp_path / folder)

    uploader("old").claim()
    new = uploader("new")
    new.claim()
    with pytest.raises(FencedError, match="writes attempt 1"):
        uploader("old").claim()
    new.check(True)
    uploader("new").claim()
    new.check(True)


def test_a_restart_sends_a_large_file_again(pod, store, run, proxy):
    size = 5 * PART
    proxy.faults = [Fault(faults.slowly(4e6), target="partNumber=[345]", times=EVER)]
    sidecar = pod.sidecar()
    pod.checkpoint(1, os.urandom(size))
    done = lambda: [s for s in proxy.of("PUT", "partNumber") if s.status == 200]  # noqa: E731
    until(lambda: len(done()) >= 2, "two parts are stored")
    sidecar.kill()
    sidecar.wait()
    until(lambda: not proxy.in_flight(), "nothing on its way")
    proxy.faults = []

    pod.sidecar()
    pod.says("stored checkpoint 1")
    assert pod.steps(store) == [1]
    entry = store.read_manifest(run.checkpoints / "1" / "manifest.json").objects[0]
    store.prove(run.checkpoints / "1" / "data", entry)


@pytest.mark.slow
def test_sigterm_finishes_what_is_on_its_way(pod, store, run, proxy):
    proxy.faults = [Fault(faults.slowly(20e6), target="partNumber", times=EVER)]
    sidecar = pod.sidecar("--grace", "60")
    pod.checkpoint(1, os.urandom(2 * PART))
    until(lambda: proxy.of("PUT", "partNumber"), "a part is on its way")
    pod.checkpoint(2)
    sidecar.send_signal(signal.SIGTERM)
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(SECONDS) == 0, pod.log()
    assert pod.steps(store) == [1, 2]
    assert "everything is stored" in pod.log()


def test_the_end_is_bounded(pod, proxy):
    sidecar = pod.sidecar("--grace", "2")
    pod.says("mirrored by")
    proxy.faults = [Fault(faults.slowly(100), target="checkpoints", times=EVER)]
    pod.checkpoint(1, os.urandom(100_000))
    until(lambda: proxy.of("PUT", "checkpoints"), "the checkpoint is on its way")
    began = time.monotonic()
    assert pod.end(sidecar) == 145
    assert time.monotonic() - began < 60  # the store would take a thousand
    assert "not stored: 'checkpoints/1/data'" in pod.log()


@pytest.mark.slow
def test_stop_within(pod, proxy, tmp_path):
    podinfo = tmp_path / "podinfo"
    podinfo.mkdir()
    proxy.faults = [Fault(faults.slow_down, target="model", times=EVER)]
    pod.write("model.keras", b"x")
    sidecar = pod.sidecar("--grace", "600", PODINFO_DIR=str(podinfo))
    pod.says("the store is unreachable")
    sidecar.terminate()
    pod.says("the trainer has ended")
    (podinfo / "stop-within").write_text("1s\n")
    assert sidecar.wait(SECONDS) == 145
    assert "1 not stored: 'model.keras'" in pod.log()


def test_credentials_are_mended_while_it_runs(pod, s3, store, run, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    shutil.copytree(s3.secret, secret)
    (secret / "AWS_SECRET_ACCESS_KEY").write_text("wrong-key-nobody-may-see")
    monkeypatch.setenv(MOUNT_VARIABLE, str(secret))
    pod.checkpoint(1)
    sidecar = pod.sidecar()
    pod.says("the secret key does not belong to the access key")
    pod.complete()
    pod.request("early")
    pod.wait_for("early", "storing", "secret key")
    shutil.copy(s3.secret / "AWS_SECRET_ACCESS_KEY", secret)
    pod.wait_for("early", "stored")
    assert pod.steps(store) == [1]
    assert "wrong-key" not in pod.log()
    assert pod.end(sidecar) == 0


@pytest.mark.slow
def test_permission_that_comes_back(pod, store, run, proxy):
    sidecar = pod.sidecar()
    pod.says("mirrored by")
    denied = Fault(faults.refuse(403, "AccessDenied"), "PUT", times=EVER)
    proxy.faults = [denied]
    for number in range(20):
        pod.write(f"model/{number}", b"x")
    pod.checkpoint(1)
    pod.says("the credentials do not allow this")
    sidecar.terminate()
    pod.says("the trainer has ended")
    proxy.faults = []
    assert sidecar.wait(SECONDS) == 0, pod.log()
    assert pod.steps(store) == [1]
    assert pod.log().count("AccessDenied") < 10


@pytest.mark.slow
def test_output_that_cannot_be_written_to(pod, store, run):
    (pod.output / ".uploader").write_text("in the way")
    pod.checkpoint(1)
    sidecar = pod.sidecar()
    pod.says("stored checkpoint 1")
    assert pod.end(sidecar) == 0, pod.log()
    assert pod.steps(store) == [1]
