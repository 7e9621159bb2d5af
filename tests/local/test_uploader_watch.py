"""The sidecar as a process, beside a fake trainer under the real supervisor, on the real server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.components.step import Step
from kfp_tfjob.components.sync_output import sync
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.supervisor.environment import TERMINATION_LOG
from kfp_tfjob.uploader import pull, verify
from kfp_tfjob.uploader.inventory import inventory, scan
from tests.waiting import until

RUN = "run-1"
SECONDS = 240  # until a test gives up waiting
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


class Job:
    """One run: its output folder, its sidecar and its trainer."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.output = folder / "output"
        self.output.mkdir()
        self.layout, self.run = layout, layout.run(RUN)
        self._log = folder / "sidecar.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def sidecar(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the sidecar."""
        line = [sys.executable, "-m", "kfp_tfjob.uploader", "watch"]
        line += [str(self.output), str(self.run.base)]
        return self._start([*line, "--interval", "0.1", *options])

    def trainer(self, steps: int, pause: float) -> subprocess.Popen[bytes]:
        """Start the trainer under the supervisor."""
        command = [sys.executable, "-c", TRAINER, str(steps), str(pause)]
        return self._start([sys.executable, "-m", "kfp_tfjob.supervisor", "--", *command])

    def _start(self, line: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "RUN_ID": RUN,
            "ATTEMPT": "1",
            "OUTPUT_DIR": str(self.output),
            "EXPECTED_REPLICAS": "1",
            "FLUSH_BARRIER": "1",
            "STORE_DEADLINE": str(SECONDS),
        }
        environment.pop("TF_CONFIG", None)
        with open(self._log, "ab") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
        self._processes.append(process)
        return process

    def log(self) -> str:
        return self._log.read_text()

    def complete(self) -> None:
        """Leave the record that the supervisor leaves."""
        record = {"run_id": RUN, "attempt": 1, "finished": "now"}
        (self.output / "completion.json").write_text(json.dumps(record))

    def request(self, name: str, attempt: int = 1, more: int = 0) -> None:
        """Ask the sidecar whether everything is stored."""
        files, digest = inventory(scan(self.output).files.values())
        body = {"id": name, "attempt": attempt, "files": files + more, "inventory": digest}
        folder = self.output / ".uploader"
        folder.mkdir(exist_ok=True)
        (folder / "request.part").write_text(json.dumps(body))
        (folder / "request.part").replace(folder / "flush-request.json")

    def reply(self, name: str) -> dict:
        """Return the newest answer to a request, or nothing."""
        path = self.output / ".uploader" / "flush-reply.json"
        body = json.loads(path.read_text()) if path.exists() else {}
        return body if body.get("id") == name else {}

    def wait_stored(self, name: str) -> dict:
        until(lambda: self.reply(name).get("state") == "stored", f"{name} stored\n{self.log()}")
        return self.reply(name)

    def wait_message(self, name: str, text: str, state: str = "storing") -> dict:
        def told() -> bool:
            reply = self.reply(name)
            return reply.get("state") == state and text in reply["message"]

        until(told, f"{text!r} about {name}\n{self.log()}")
        return self.reply(name)

    def end(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(SECONDS)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path, base: S3Address) -> Iterator[Job]:
    job = Job(tmp_path, Layout(base))
    yield job
    job.stop()


def content(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in scan(folder).files}


def assert_whole(store: Store, run: RunLayout, output: Path, copy: Path) -> None:
    """Every file of the folder can be had back through the run's manifest."""
    manifest = store.read_manifest(run.manifest)
    assert verify(store, run.base, manifest) == []
    pull(store, run.base, copy)
    assert content(copy / "output") == content(output)


def complete_steps(store: Store, run: RunLayout) -> list[int]:
    names = [item.address.key for item in store.list(run.checkpoints)]
    return sorted(int(name.split("/")[-2]) for name in names if name.endswith("/manifest.json"))


def assert_restorable(store: Store, run: RunLayout, folder: Path, step: int) -> None:
    """A checkpoint comes back with the very bytes the trainer wrote."""
    pull(store, run.checkpoints / str(step), folder)
    expected = {name: f"{step}/{name} ".encode() * 5000 for name in ("data 0", "index")}
    assert content(folder) == expected


def test_a_whole_run(store, job, tmp_path):
    sidecar = job.sidecar()
    trainer = job.trainer(steps=8, pause=0.3)

    assert trainer.wait(SECONDS) == 0, job.log()

    assert_whole(store, job.run, job.output, tmp_path / "copy")
    result = sync.run(Step("sync_output", RUN, job.layout, store))
    assert result.model_uri == f"{job.run.base}/output/model"
    assert result.manifest.attempt == 1
    until(lambda: store.numbers(job.run.checkpoints) == [7, 8], "pruned steps are removed")
    assert job.end(sidecar) == 0
    assert "stored checkpoint" in job.log()
    assert "Traceback" not in job.log()


@pytest.mark.slow
def test_the_sidecar_may_be_killed_at_any_time(store, job, tmp_path):
    trainer = job.trainer(steps=8, pause=0.5)
    asked = job.output / ".uploader" / "flush-request.json"
    least = 0

    def progressed(least: int) -> bool:
        return max(complete_steps(store, job.run), default=0) > least

    for life in range(3):
        sidecar = job.sidecar()
        until(
            # A trainer that has ended brings no newer checkpoint.
            lambda least=least: progressed(least) or (least and asked.exists()),
            f"a new checkpoint\n{job.log()}",
        )
        sidecar.kill()
        sidecar.wait()
        least = complete_steps(store, job.run)[-1]
        assert_restorable(store, job.run, tmp_path / f"life-{life}", least)
    until(asked.exists, "the trainer has ended and cannot answer")
    job.sidecar()

    assert trainer.wait(SECONDS) == 0, job.log()
    assert_whole(store, job.run, job.output, tmp_path / "copy")


def test_sigterm_stores_what_is_left(store, job, tmp_path):
    for step in (9, 10, 11):
        folder = job.output / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(os.urandom(1000))
    (job.output / "progress.jsonl").write_text("{}\n")
    sidecar = job.sidecar("--interval", "3600", "--workers", "1")
    until(lambda: "mirroring" in job.log(), "the first scan")

    assert job.end(sidecar) == 0, job.log()

    assert complete_steps(store, job.run) == [9, 10, 11]
    assert store.read(job.run.output / "progress.jsonl") == b"{}\n"
    log = job.log()
    places = [log.index(f"stored checkpoint {step}:") for step in (11, 10, 9)]
    assert places == sorted(places), log
    with pytest.raises(DataError):
        store.read_manifest(job.run.manifest)


@pytest.mark.fault("the store is unreachable at the deadline")
def test_sigterm_while_the_store_is_away_says_so(job, tmp_path, monkeypatch):
    """Nothing answers at the port, so nothing can be stored within the grace."""
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        (secret / name).write_text("x")
    (secret / "AWS_ENDPOINT_URL").write_text("http://127.0.0.1:9")
    (words := tmp_path / "words").touch()
    monkeypatch.setenv(TERMINATION_LOG, str(words))
    monkeypatch.setenv(MOUNT_VARIABLE, str(secret))
    (job.output / "model.keras").write_bytes(b"x")
    sidecar = job.sidecar("--grace", "1")
    until(lambda: "the store is unreachable" in job.log(), "the store is found away")

    assert job.end(sidecar) == 145
    assert words.read_text().startswith("1 not stored: ")
    assert "1 not stored: 'model.keras'" in job.log()
    assert job.log().count("the store is unreachable") == 1


@pytest.mark.slow
@pytest.mark.fault("the store is killed and comes back")
def test_the_store_may_be_killed_and_come_back(job, tmp_path, monkeypatch, base):
    folder = tmp_path / "s3"
    with Server.start(folder) as server:
        monkeypatch.setenv(MOUNT_VARIABLE, str(server.secret))
        server.store().make_bucket(base.bucket)
        port = int(server.endpoint.rpartition(":")[2])
        sidecar = job.sidecar()
        trainer = job.trainer(steps=6, pause=0.3)
        until(lambda: "stored checkpoint" in job.log(), "the first checkpoint")
        server.process.kill()
        server.process.wait()
    asked = job.output / ".uploader" / "flush-request.json"
    until(asked.exists, "the trainer has ended")
    name = json.loads(asked.read_text())["id"]
    job.wait_message(name, "did not answer")
    assert trainer.poll() is None

    with Server.start(folder, port) as server:
        assert trainer.wait(SECONDS) == 0, job.log()
        assert_whole(server.store(), job.run, job.output, tmp_path / "copy")
        assert job.end(sidecar) == 0
    log = job.log()
    assert log.index("the store is unreachable") < log.index("the store answers again")


@pytest.mark.fault("a file name that cannot be a key in S3")
def test_any_name_and_any_size_at_the_barrier(store, job, tmp_path):
    files = {
        "large": os.urandom(PART + 54321),
        "empty": b"",
        "with space/+ % #?&=": b"signs",
        "ünï çödé": b"unicode",
        "line\nbreak": b"newline",
        "checkpoints/0/a b": b"step zero",
        "checkpoints/best/x": b"not a step",
    }
    for path, data in files.items():
        (job.output / path).parent.mkdir(parents=True, exist_ok=True)
        (job.output / path).write_bytes(data)
    os.mkfifo(job.output / "fifo")
    (job.output / "out").symlink_to("/etc")
    bad = job.output / os.fsdecode(b"bad\xff")
    bad.write_bytes(b"x")
    job.complete()
    job.request("first")
    sidecar = job.sidecar()

    reply = job.wait_message("first", "not UTF-8", "impossible")
    assert (reply["stored"], reply["missing"]) == (len(files) + 1, ["bad\udcff"])

    bad.unlink()
    job.request("second")
    assert job.wait_stored("second")["missing"] == []
    assert_whole(store, job.run, job.output, tmp_path / "copy")
    assert job.log().count("'fifo' is a") == 1
    assert job.log().count("'out' is a link") == 1
    assert job.end(sidecar) == 0


@pytest.mark.fault("a request too early, of another attempt, or for other files")
def test_what_stands_in_the_way_of_stored(store, job):
    (job.output / "model.keras").write_bytes(b"x")
    sidecar = job.sidecar()

    job.request("early")
    job.wait_message("early", "no completion.json of attempt 1")
    job.complete()
    job.request("other attempt", attempt=2)
    job.request("wrong", more=1)
    job.wait_message("wrong", "the folder changed")

    other = b'{"another": "manifest"}'
    store.create(job.run.manifest, other)
    job.request("taken")
    job.wait_message("taken", "which must stay")
    assert store.read(job.run.manifest) == other
    store.delete(job.run.manifest)
    job.wait_stored("taken")

    # Answered is answered: a sidecar that starts again does not answer another time.
    path = job.output / ".uploader" / "flush-reply.json"
    before = path.stat().st_mtime_ns
    assert job.end(sidecar) == 0
    again = job.sidecar()
    until(lambda: job.log().count("mirroring") == 2, "the second start")
    assert job.end(again) == 0
    assert path.stat().st_mtime_ns == before
