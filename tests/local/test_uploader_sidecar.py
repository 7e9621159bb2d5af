"""The sidecar as a process: beside a trainer under the real supervisor, and among faults.

`make test` runs a part of it, `make test-uploader` all.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.sync_output import sync
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.supervisor.environment import TERMINATION_LOG
from kfp_tfjob.uploader import pull, verify
from kfp_tfjob.uploader.ownership import FencedError, Ownership
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.world import EVER, content, write_files
from tests.local.sidecar import RUN, SECONDS, Pod
from tests.waiting import until


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
    store.verify(run.checkpoints / "1" / "data", entry)


@pytest.mark.slow
def test_sigterm_finishes_what_is_on_its_way(pod, store, proxy):
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
    assert "1 file not stored: 'model.keras'" in pod.log()


def test_credentials_are_mended_while_it_runs(pod, s3, store, tmp_path, monkeypatch):
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


# Writes checkpoints by a rename each, keeps the last two, and lets an event file grow.
TRAINER = """
import os, shutil, sys, time
from pathlib import Path

output, steps, pause = Path(os.environ["OUTPUT_DIR"]), int(sys.argv[1]), float(sys.argv[2])
(output / "logs").mkdir(parents=True, exist_ok=True)
for step in range(1, steps + 1):
    temporary = output / "checkpoints" / f"{step}.tmp"
    temporary.mkdir(parents=True)
    for name in ("data 0", "index"):
        (temporary / name).write_bytes(f"{step}/{name} ".encode() * 5000)
    temporary.rename(output / "checkpoints" / str(step))
    shutil.rmtree(output / "checkpoints" / str(step - 2), ignore_errors=True)
    for _ in range(10):
        with open(output / "logs" / "events.out.tfevents.1.host", "ab") as events:
            events.write(b"event of step %d;" % step)
        time.sleep(pause / 10)
(output / "model" / "variables").mkdir(parents=True)
(output / "model" / "saved_model.pb").write_bytes(b"graph")
(output / "model" / "variables" / "variables").write_bytes(bytes(100_000))
"""


def train(pod: Pod, steps: int, pause: float) -> subprocess.Popen[bytes]:
    environment = {
        "RUN_ID": RUN,
        "ATTEMPT": "1",
        "OUTPUT_DIR": str(pod.output),
        "EXPECTED_REPLICAS": "1",
        "FLUSH_BARRIER": "1",
        "STORE_DEADLINE": str(SECONDS),
        "TF_CONFIG": "",
    }
    command = [sys.executable, "-c", TRAINER, str(steps), str(pause)]
    return pod.start([sys.executable, "-m", "kfp_tfjob.supervisor", "--", *command], **environment)


def assert_whole(store: Store, run: RunLayout, output: Path, copy: Path) -> None:
    """Every file of the folder can be had back through the run's manifest."""
    manifest = store.read_manifest(run.manifest)
    assert verify(store, run.base, manifest) == []
    pull(store, run.base, copy)
    assert content(copy / "output") == content(output)


def test_a_whole_run(store, base, pod, tmp_path):
    sidecar = pod.sidecar()
    trainer = train(pod, steps=8, pause=0.3)

    assert trainer.wait(SECONDS) == 0, pod.log()

    assert_whole(store, pod.run, pod.output, tmp_path / "copy")
    result = sync.run(Step("sync_output", RUN, Layout(base), store))
    assert result.model_uri == f"{pod.run.base}/output/model"
    assert result.manifest.attempt == 1
    until(lambda: store.numbers(pod.run.checkpoints) == [7, 8], "pruned steps are removed")
    assert pod.end(sidecar) == 0
    assert "stored checkpoint" in pod.log()
    assert "Traceback" not in pod.log()


def test_sigterm_stores_what_is_left(store, pod, tmp_path):
    for step in (9, 10, 11):
        folder = pod.output / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(os.urandom(1000))
    (pod.output / "progress.jsonl").write_text("{}\n")
    sidecar = pod.sidecar("--interval", "3600")
    until(lambda: "mirroring" in pod.log(), "the first scan")

    assert pod.end(sidecar) == 0, pod.log()

    assert pod.steps(store) == [9, 10, 11]
    assert store.read(pod.run.output / "progress.jsonl") == b"{}\n"
    log = pod.log()
    places = [log.index(f"stored checkpoint {step}:") for step in (11, 10, 9)]
    assert places == sorted(places), log
    with pytest.raises(DataError):
        store.read_manifest(pod.run.manifest)


def test_steps_that_could_not_be_removed_are_removed_at_the_end(store, pod, proxy):
    """The trainer ends as soon as everything is stored, whatever is still to be removed."""
    proxy.faults = [Fault(faults.slow_down, "DELETE", "/checkpoints/1/", times=EVER)]
    for step in (1, 2):
        pod.checkpoint(step)
    sidecar = pod.sidecar("--interval", "2")  # the end comes before another pass
    pod.says("stored checkpoint 1")
    shutil.rmtree(pod.output / "checkpoints" / "1")
    pod.complete()
    pod.request("last")
    pod.wait_for("last", "stored")
    pod.says("the store is unreachable")
    proxy.faults = []

    assert pod.end(sidecar) == 0

    assert store.numbers(pod.run.checkpoints) == [2]


def test_sigterm_does_not_wait_for_a_removal(pod, proxy):
    """An old checkpoint of many files was removed before the last files were stored."""
    proxy.faults = [Fault(lambda _: time.sleep(0.2), "DELETE", "/checkpoints/1/", times=EVER)]
    write_files(pod.output, {f"checkpoints/1/{number}": b"data" for number in range(15)})
    sidecar = pod.sidecar()
    pod.says("stored checkpoint 1")
    pod.checkpoint(2)
    pod.says("stored checkpoint 2")
    shutil.rmtree(pod.output / "checkpoints" / "1")
    until(lambda: len(proxy.of("DELETE", "/checkpoints/1/")) > 1, "the removal has begun")
    pod.write("model.keras", b"x")
    assert pod.end(sidecar) == 0, pod.log()
    order = [seen.target for seen in proxy.seen]
    (stored,) = (at for at, target in enumerate(order) if target.endswith("/model.keras"))
    assert any("/checkpoints/1/" in target for target in order[stored:])


@pytest.mark.slow
def test_a_removal_that_hangs_does_not_count_as_lost_output(store, pod, proxy):
    proxy.faults = [Fault(faults.slow_down, "DELETE", "/checkpoints/1/", times=EVER)]
    for step in (1, 2):
        pod.checkpoint(step)
    sidecar = pod.sidecar("--grace", "3")
    pod.says("stored checkpoint 1")
    shutil.rmtree(pod.output / "checkpoints" / "1")
    pod.says("the store is unreachable")
    proxy.faults = [Fault(lambda _: time.sleep(60), "DELETE", "/checkpoints/1/", times=EVER)]
    assert pod.end(sidecar) == 0
    assert "not stored" not in pod.log()


def test_sigterm_while_the_store_is_away_says_so(pod, tmp_path, monkeypatch):
    """Nothing answers at the port, so nothing can be stored within the grace."""
    pod.endpoint = ""  # that of its Secret
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (secret / name).write_text("x")
    (secret / "AWS_ENDPOINT_URL").write_text("http://127.0.0.1:9")
    (words := tmp_path / "words").touch()
    monkeypatch.setenv(TERMINATION_LOG, str(words))
    monkeypatch.setenv(MOUNT_VARIABLE, str(secret))
    (pod.output / "model.keras").write_bytes(b"x")
    sidecar = pod.sidecar("--grace", "1")
    until(lambda: "the store is unreachable" in pod.log(), "the store is found away")

    assert pod.end(sidecar) == 145
    assert words.read_text().startswith("1 file not stored: ")
    assert "1 file not stored: 'model.keras'" in pod.log()
    assert pod.log().count("the store is unreachable") == 1


@pytest.mark.slow
def test_the_store_may_be_killed_and_come_back(pod, tmp_path, monkeypatch, base):
    folder = tmp_path / "s3"
    pod.endpoint = ""  # that of its Secret
    with Server.start(folder) as server:
        monkeypatch.setenv(MOUNT_VARIABLE, str(server.secret))
        server.store().make_bucket(base.bucket)
        sidecar = pod.sidecar()
        trainer = train(pod, steps=6, pause=0.3)
        until(lambda: "stored checkpoint" in pod.log(), "the first checkpoint")
        server.process.kill()
        server.process.wait()
    asked = pod.output / ".uploader" / "flush-request.json"
    until(asked.exists, "the trainer has ended")
    name = json.loads(asked.read_text())["id"]
    pod.wait_for(name, "storing", "did not respond")
    assert trainer.poll() is None

    with Server.start(folder) as server:
        assert trainer.wait(SECONDS) == 0, pod.log()
        assert_whole(server.store(), pod.run, pod.output, tmp_path / "copy")
        assert pod.end(sidecar) == 0
    log = pod.log()
    assert log.index("the store is unreachable") < log.index("the store is reachable again")


def test_any_name_and_any_size_at_the_barrier(store, pod, tmp_path):
    files = {
        "large": os.urandom(PART + 54321),
        "empty": b"",
        "with space/+ % #?&=": b"signs",
        "ünï çödé": b"unicode",
        "line\nbreak": b"newline",
        "checkpoints/0/a b": b"step zero",
        "checkpoints/best/x": b"not a step",
    }
    write_files(pod.output, files)
    os.mkfifo(pod.output / "fifo")
    (pod.output / "out").symlink_to("/etc")
    bad = pod.output / os.fsdecode(b"bad\xff")
    bad.write_bytes(b"x")
    pod.complete()
    pod.request("first")
    sidecar = pod.sidecar()

    reply = pod.wait_for("first", "impossible", "not UTF-8")
    assert (reply["stored"], reply["missing"]) == (len(files) + 1, ["bad\udcff"])

    bad.unlink()
    pod.request("second")
    assert pod.wait_for("second", "stored")["missing"] == []
    assert_whole(store, pod.run, pod.output, tmp_path / "copy")
    assert pod.log().count("'fifo' is a") == 1
    assert pod.log().count("'out' ") == 1
    pod.says("checkpoints/best")
    assert pod.log().count("checkpoints/best") == 1  # which another attempt would not get
    assert pod.end(sidecar) == 0


def test_what_stands_in_the_way_of_stored(store, pod):
    (pod.output / "model.keras").write_bytes(b"x")
    sidecar = pod.sidecar()

    pod.request("early")
    pod.wait_for("early", "storing", "no completion.json of attempt 1")
    pod.complete()
    pod.request("other attempt", attempt=2)
    pod.request("wrong", more=1)
    pod.wait_for("wrong", "storing", "the folder changed")

    other = b'{"another": "manifest"}'
    store.create(pod.run.manifest, other)
    pod.request("taken")
    pod.wait_for("taken", "storing", "must not be replaced")
    assert store.read(pod.run.manifest) == other
    store.delete(pod.run.manifest)
    pod.wait_for("taken", "stored")

    # Answered is answered: a sidecar that starts again does not answer another time.
    path = pod.output / ".uploader" / "flush-reply.json"
    before = path.stat().st_mtime_ns
    assert pod.end(sidecar) == 0
    again = pod.sidecar()
    until(lambda: pod.log().count("mirroring") == 2, "the second start")
    assert pod.end(again) == 0
    assert path.stat().st_mtime_ns == before
