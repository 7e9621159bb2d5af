"""The sidecar as a process among faults: who owns the run, and how it ends.

`make test` runs a part of it, `make test-uploader` all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader.inventory import inventory, scan
from kfp_tfjob.uploader.ownership import FencedError, Ownership
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy
from tests.waiting import until

SECONDS = 240  # only what hangs reaches it
EVER = float("inf")


class Pod:
    """An output folder and the sidecars that mirror it."""

    def __init__(self, folder: Path, run: RunLayout, endpoint: str) -> None:
        self.output, self.run, self._endpoint = folder / "output", run, endpoint
        self.output.mkdir(parents=True)
        self._log = folder / "sidecar.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "kfp_tfjob.uploader", "watch"]
        line += [str(self.output), str(self.run.base)]
        line += ["--interval", "0.05", "--endpoint", self._endpoint, "--attempt", "1", *options]
        with open(self._log, "ab") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, env=os.environ | environment)
        self._processes.append(process)
        return process

    def log(self) -> str:
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> None:
        until(lambda: self.log().count(text) >= times, f"{text!r} in\n{self.log()}")

    def write(self, path: str, data: bytes) -> None:
        target = self.output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.tmp")
        partial.write_bytes(data)
        partial.replace(target)

    def checkpoint(self, step: int, data: bytes = b"data") -> None:
        temporary = self.output / "checkpoints" / f"{step}.tmp"
        temporary.mkdir(parents=True)
        (temporary / "data").write_bytes(data)
        temporary.rename(temporary.with_suffix(""))

    def ask(self, name: str) -> Callable[[], dict]:
        """Ask at the barrier, with a record of completion; return what reads the answer."""
        self.write("completion.json", json.dumps({"run_id": "r", "attempt": 1}).encode())
        files, digest = inventory(scan(self.output).files.values())
        folder = self.output / ".uploader"
        folder.mkdir(exist_ok=True)
        body = {"id": name, "attempt": 1, "files": files, "inventory": digest}
        (folder / "flush-request.part").write_text(json.dumps(body))
        (folder / "flush-request.part").replace(folder / "flush-request.json")

        def answer() -> dict:
            path = folder / "flush-reply.json"
            reply = json.loads(path.read_text()) if path.exists() else {}
            return reply if reply.get("id") == name else {}

        return answer

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def run(base) -> RunLayout:
    return RunLayout(base / "runs" / "r")


@pytest.fixture
def pod(tmp_path: Path, run: RunLayout, proxy: FaultProxy) -> Iterator[Pod]:
    pod = Pod(tmp_path / "pod", run, proxy.endpoint)
    yield pod
    pod.stop()


def steps(store: Store, run: RunLayout) -> list[int]:
    """Return the steps that a reader would trust."""
    found = []
    for step in store.numbers(run.checkpoints):
        try:
            store.read_manifest(run.checkpoints / str(step) / "manifest.json")
        except ObjectNotFoundError:
            continue
        found.append(step)
    return found


@pytest.mark.fault("a zombie of an older attempt")
def test_an_older_attempt_publishes_nothing_any_more(pod, store, run, proxy):
    sidecar = pod.start()
    pod.checkpoint(1)
    pod.says("stored checkpoint 1")

    # The next attempt is claimed while the data of a checkpoint is on its way.
    claimed = threading.Event()

    def claim() -> None:
        store.create(run.attempts / "0002.json", b'{"run_id": "r", "attempt": 2}')
        claimed.set()

    proxy.faults = [Fault(faults.midway(claim), target="/checkpoints/2/data")]
    pod.checkpoint(2, os.urandom(1_000_000))
    until(claimed.is_set, "the claim")
    pod.says("attempt 2 owns this run")
    pod.checkpoint(3)
    answer = pod.ask("late")
    until(lambda: "attempt 2 owns this run" in answer().get("message", ""), "an answer")

    assert answer()["state"] == "storing"
    assert steps(store, run) == [1]
    sidecar.terminate()
    assert sidecar.wait(SECONDS) == 2
    assert steps(store, run) == [1]
    with pytest.raises(ObjectNotFoundError):
        store.read_manifest(run.manifest)
    restarted = pod.start()
    pod.says("attempt 2 owns this run", 2)
    restarted.terminate()
    assert restarted.wait(SECONDS) == 2


@pytest.mark.fault("a sidecar is started again in a pod that was replaced")
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


@pytest.mark.fault("SIGKILL and restart in the middle of a large file")
def test_a_restart_goes_on_where_it_was_killed(pod, store, run, proxy):
    size = 5 * PART
    proxy.faults = [Fault(faults.slowly(4e6), target="partNumber=[345]", times=EVER)]
    sidecar = pod.start()
    pod.checkpoint(1, os.urandom(size))
    done = lambda: [s for s in proxy.of("PUT", "partNumber") if s.status == 200]  # noqa: E731
    until(lambda: len(done()) >= 2, "two parts are stored")
    sidecar.kill()
    sidecar.wait()
    until(lambda: not proxy.in_flight(), "nothing on its way")
    before = len(done())
    proxy.faults = []

    pod.start()
    pod.says("stored checkpoint 1")
    assert "parts are stored" in pod.log()
    assert len(done()) == 5, f"{before} parts were stored before"
    assert steps(store, run) == [1]
    entry = store.read_manifest(run.checkpoints / "1" / "manifest.json").objects[0]
    store.prove(run.checkpoints / "1" / "data", entry)
    assert store.unfinished(run.output) == []


@pytest.mark.slow
@pytest.mark.fault("SIGTERM, twice, in the middle of a large file")
def test_sigterm_finishes_what_is_on_its_way(pod, store, run, proxy):
    proxy.faults = [Fault(faults.slowly(20e6), target="partNumber", times=EVER)]
    sidecar = pod.start("--grace", "60")
    pod.checkpoint(1, os.urandom(2 * PART))
    until(lambda: proxy.of("PUT", "partNumber"), "a part is on its way")
    pod.checkpoint(2)
    sidecar.send_signal(signal.SIGTERM)
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(SECONDS) == 0, pod.log()
    assert steps(store, run) == [1, 2]
    assert "everything is stored" in pod.log()


@pytest.mark.fault("SIGTERM while the store hangs")
def test_the_end_is_bounded(pod, proxy):
    sidecar = pod.start("--grace", "2")
    pod.says("mirrored by")
    proxy.faults = [Fault(faults.slowly(100), target="checkpoints", times=EVER)]
    pod.checkpoint(1, os.urandom(100_000))
    until(lambda: proxy.of("PUT", "checkpoints"), "the checkpoint is on its way")
    began = time.monotonic()
    sidecar.terminate()
    assert sidecar.wait(SECONDS) == 145
    assert time.monotonic() - began < 60  # the store would take a thousand
    assert "not stored: 'checkpoints/1/data'" in pod.log()


@pytest.mark.slow
@pytest.mark.fault("stop-within shortens the grace")
def test_stop_within(pod, proxy, tmp_path):
    podinfo = tmp_path / "podinfo"
    podinfo.mkdir()
    proxy.faults = [Fault(faults.slow_down, target="model", times=EVER)]
    pod.write("model.keras", b"x")
    sidecar = pod.start("--grace", "600", PODINFO_DIR=str(podinfo))
    pod.says("the store is unreachable")
    sidecar.terminate()
    pod.says("the trainer has ended")
    (podinfo / "stop-within").write_text("1s\n")
    assert sidecar.wait(SECONDS) == 145
    assert "1 not stored: 'model.keras'" in pod.log()


@pytest.mark.fault("wrong credentials at the start, then rotated")
def test_credentials_are_mended_while_it_runs(pod, s3, store, run, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    shutil.copytree(s3.secret, secret)
    (secret / "AWS_SECRET_ACCESS_KEY").write_text("wrong-key-nobody-may-see")
    monkeypatch.setenv(MOUNT_VARIABLE, str(secret))
    pod.checkpoint(1)
    sidecar = pod.start()
    pod.says("the secret key does not belong to the access key")
    answer = pod.ask("early")
    until(lambda: "secret key" in answer().get("message", ""), "an answer that says why")
    shutil.copy(s3.secret / "AWS_SECRET_ACCESS_KEY", secret)
    until(lambda: answer().get("state") == "stored", pod.log())
    assert steps(store, run) == [1]
    assert "wrong-key" not in pod.log()
    sidecar.terminate()
    assert sidecar.wait(SECONDS) == 0


@pytest.mark.slow
@pytest.mark.fault("write permission is lost and comes back")
def test_permission_that_comes_back(pod, store, run, proxy):
    sidecar = pod.start()
    pod.says("mirrored by")
    denied = Fault(faults.refuse(403, "AccessDenied"), "PUT", times=EVER)
    proxy.faults = [denied]
    for number in range(20):
        pod.write(f"model/{number}", b"x")
    pod.checkpoint(1)
    pod.says("the credentials may not do this")
    sidecar.terminate()
    pod.says("the trainer has ended")
    proxy.faults = []
    assert sidecar.wait(SECONDS) == 0, pod.log()
    assert steps(store, run) == [1]
    assert pod.log().count("may not do this") < 10, "not a line for each file"


@pytest.mark.slow
@pytest.mark.fault("no folder for its files: read-only output")
def test_output_that_cannot_be_written_to(pod, store, run):
    (pod.output / ".uploader").write_text("in the way")
    pod.checkpoint(1)
    sidecar = pod.start()
    pod.says("stored checkpoint 1")
    sidecar.terminate()
    assert sidecar.wait(SECONDS) == 0, pod.log()
    assert steps(store, run) == [1]
