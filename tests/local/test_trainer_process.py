"""The trainer as processes under the supervisor: equal results, recovery, ends that say why."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_dataset

from pipelines.local.s3_server import Server
from storage.address import S3Address
from storage.credentials import MOUNT_VARIABLE

ROOT = Path(__file__).parents[2]
SECONDS = 240.0  # of one job; an idle machine needs a tenth of it
BATCH = 4
STEPS = tiny_dataset.ROWS["train"] // BATCH


@dataclass
class Job:
    """The replicas of one attempt, as processes."""

    folder: Path
    environment: dict[str, str]
    size: int = 1
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.folder / "0" / "output"

    def log(self, replica: int = 0) -> str:
        return (self.folder / str(replica) / "log").read_text()

    def start(self) -> Job:
        ports = _free_ports(self.size)
        hosts = [f"127.0.0.1:{port}" for port in ports]
        for at in range(self.size):
            job_dir = self.folder / str(at)
            (job_dir / "code").mkdir(parents=True, exist_ok=True)
            (job_dir / "words").write_text("")
            environment = self.environment | {
                "JOB_DIR": str(job_dir),
                "OUTPUT_DIR": str(job_dir / "output"),
                "TERMINATION_LOG": str(job_dir / "words"),
                "EXPECTED_REPLICAS": self.environment.get("EXPECTED_REPLICAS", str(self.size)),
                "REPLICAS_ON_THIS_MACHINE": str(self.size),
            }
            if self.size > 1:
                task = {"type": "worker" if at else "chief", "index": max(at - 1, 0)}
                cluster = {"chief": hosts[:1], "worker": hosts[1:]}
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            command = [sys.executable, str(ROOT / "trainer" / "supervisor.py"), "--"]
            with open(job_dir / "log", "wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [*command, sys.executable, "-m", "trainer"],
                        env=environment,
                        stdout=log,
                        stderr=log,
                        cwd=job_dir,
                    )
                )
        return self

    def end(self) -> list[int]:
        """Wait for the end of all replicas and return their exit codes."""
        deadline = time.monotonic() + SECONDS
        return [item.wait(max(deadline - time.monotonic(), 0.1)) for item in self.processes]

    def words(self, replica: int = 0) -> str:
        return (self.folder / str(replica) / "words").read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.output / "progress.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    @property
    def final(self) -> dict[str, Any]:
        (found,) = self.events("final")
        return found

    def checkpoint(self) -> int:
        """The newest step there is a checkpoint of, or 0."""
        folder = self.output / "checkpoints"
        names = [item.name for item in folder.iterdir()] if folder.exists() else []
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert all(item.poll() is None for item in self.processes), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


Start = Callable[..., Job]


@pytest.fixture(scope="module")
def jobs(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts jobs; the datasets `classification`, `regression` and `wrong` lie in the store."""
    started: list[Job] = []
    addresses = {
        name: tiny_dataset.send(
            s3.store(),
            tiny_dataset.write(tmp_path_factory.mktemp(name), task, wrong_label=name == "wrong"),
            S3Address("test", f"trainer/{name}"),
        )
        for name, task in {
            "classification": "classification",
            "regression": "regression",
            "wrong": "classification",
        }.items()
    }

    def start(
        name: str,
        size: int = 1,
        data: str = "classification",
        code: str = "",
        folder: Path | None = None,
        **environment: str,
    ) -> Job:
        folder = folder or tmp_path_factory.mktemp(name)
        for at in range(size):
            (folder / str(at) / "code").mkdir(parents=True, exist_ok=True)
            (folder / str(at) / "code" / "own.py").write_text(code)
        defaults = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            MOUNT_VARIABLE: str(s3.secret),
            "RUN_ID": name,
            "ATTEMPT": "1",
            "DATASET_URI": str(addresses.get(data, f"s3://test/{data}")),
            "MODEL_CODE": "own:build_model" if code else "trainer.models:mlp",
            "EPOCHS": "2",
            "BATCH_SIZE": str(BATCH),
            "EXPECTED_GPUS": "0",
        }
        started.append(Job(folder, defaults | environment, size).start())
        return started[-1]

    yield start
    for job in started:
        for process in job.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="module")
def alone(jobs: Start) -> Job:
    """One process without TF_CONFIG, to its end."""
    job = jobs("alone", EPOCHS="2")
    assert job.end() == [0], job.log()
    return job


def test_two_processes_compute_what_one_computes(jobs: Start, alone: Job) -> None:
    pair = jobs("pair", 2)
    assert pair.end() == [0, 0], pair.log()
    hashes = [re.findall("weights sha256 ([0-9a-f]{64})", pair.log(at)) for at in range(2)]
    assert hashes == [[pair.final["weights_sha256"]]] * 2
    assert (pair.final["replicas"], alone.final["replicas"]) == (2, 1)
    assert pair.final["step"] == alone.final["step"] == 2 * STEPS
    for mine, other in zip(pair.events("epoch"), alone.events("epoch"), strict=True):
        assert set(mine["metrics"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert mine["metrics"] == pytest.approx(other["metrics"], rel=1e-6)
    assert alone.final["metrics"]["val_accuracy"] > 0.6
    assert not (pair.folder / "1" / "output").exists()


def test_what_the_chief_leaves(alone: Job) -> None:
    assert alone.checkpoint() == 2 * STEPS
    assert json.loads((alone.output / "completion.json").read_text())["run_id"] == "alone"
    assert list((alone.output / "logs" / "train").iterdir())
    assert re.search(
        r"epoch 2/2 step \d+/\d+ loss [\d.]+ accuracy [\d.]+ .*\| \d+ examples/s \| ETA \d+ s",
        alone.log(),
    )
    assert not [item for item in alone.output.rglob("*") if item.name.endswith((".tmp", ".part"))]


def test_the_saved_model_takes_raw_columns_and_packed_rows_alike(alone: Job) -> None:
    import keras
    import tensorflow as tf

    loaded = tf.saved_model.load(str(alone.output / "model"))
    columns = json.loads((alone.output / "model" / "assets.extra" / "columns.json").read_text())
    assert [item["column"] for item in columns] == list(tiny_dataset.FEATURES)
    rows = np.random.default_rng(1).normal(size=(9, len(columns))).astype(np.float32) * 5
    packed = loaded.signatures["serve_packed"](features=tf.constant(rows))
    named = loaded.signatures["serve"](
        **{item["argument"]: tf.constant(rows[:, at]) for at, item in enumerate(columns)}
    )
    again = keras.models.load_model(alone.output / "model.keras")
    expected = tf.nn.softmax(again(rows)).numpy()
    for outputs in (packed, named):
        assert set(outputs) == {"probabilities", "class"}
        np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-5)
        names = [name.decode() for name in outputs["class"].numpy()]
        assert names == [tiny_dataset.CLASSES[at] for at in expected.argmax(1)]


def test_any_interruption_ends_in_the_same_bytes(jobs: Start) -> None:
    """SIGKILL of the chief, then SIGTERM of the worker, both within an epoch, then to the end."""
    options = {
        "checkpoint_seconds": 0.01,
        "class_weight": "balanced",
        "early_stopping": {"patience": 9, "restore_best_weights": True},
    }
    settings = {
        "EPOCHS": "2",
        "HYPERPARAMETERS": '{"dropout": 0.2}',
        "TRAIN_OPTIONS": json.dumps(options),
    }
    undisturbed = jobs("undisturbed", 2, **settings)
    assert undisturbed.end() == [0, 0], undisturbed.log()

    killed = jobs("interrupted", 2, **settings)
    killed.until(lambda: killed.checkpoint() > 0)
    _kill_trainer(killed.processes[0].pid)
    assert killed.end() == [137, 138], killed.log(1)
    assert "another replica was lost" in killed.words(1)
    reached = killed.checkpoint()
    assert 0 < reached < STEPS

    stopped = jobs("interrupted", 2, folder=killed.folder, ATTEMPT="2", **settings)
    stopped.until(lambda: stopped.checkpoint() > reached)
    stopped.processes[1].terminate()
    assert stopped.end() == [143, 143], stopped.log()
    assert f"restored the checkpoint of step {reached}" in stopped.log(1)
    saved = int(re.findall(r"stopped by a signal after step (\d+)", stopped.log())[0])
    assert stopped.checkpoint() == saved < 2 * STEPS

    last = jobs("interrupted", 2, folder=killed.folder, ATTEMPT="3", **settings)
    assert last.end() == [0, 0], last.log()
    assert last.final["weights_sha256"] == undisturbed.final["weights_sha256"]
    assert last.final["metrics"] == undisturbed.final["metrics"]
    assert [line["metrics"] for line in last.events("epoch")] == [
        line["metrics"] for line in undisturbed.events("epoch")
    ]


def test_an_attempt_after_the_last_step_only_exports(
    jobs: Start, alone: Job, tmp_path: Path
) -> None:
    expected = alone.final
    folder = tmp_path / "job"
    shutil.copytree(alone.folder, folder)
    (folder / "0" / "output" / "model.keras").unlink()
    again = jobs("alone", folder=folder, ATTEMPT="2")
    assert again.end() == [0], again.log()
    assert f"from step {2 * STEPS}" in again.log()
    assert again.final["weights_sha256"] == expected["weights_sha256"]
    assert again.final["metrics"] == expected["metrics"]
    assert (again.output / "model.keras").exists()

    other = jobs("alone", folder=folder, HYPERPARAMETERS='{"hidden": [5]}')
    assert other.end() == [2]
    assert f"the checkpoint of step {2 * STEPS} is of another model" in other.words()


def test_a_loss_that_is_not_finite_ends_every_replica_with_4(jobs: Start) -> None:
    job = jobs("nan", 2, data="regression", HYPERPARAMETERS='{"learning_rate": 1e30}')
    assert job.end() == [4, 4], job.log()
    assert all("the loss is not finite in epoch 1, step " in job.words(at) for at in range(2))
    assert not (job.output / "model").exists()


def test_a_replica_without_peers_ends_at_the_deadline_or_when_told(jobs: Start) -> None:
    def cluster() -> dict[str, str]:
        hosts = {"chief": ["127.0.0.1:1"], "worker": [f"127.0.0.1:{_free_ports(1)[0]}"]}
        config = {"cluster": hosts, "task": {"type": "worker", "index": 0}}
        return {"EXPECTED_REPLICAS": "2", "TF_CONFIG": json.dumps(config)}

    late = jobs("late", START_DEADLINE="1", **cluster())
    told = jobs("told", START_DEADLINE="600", **cluster())
    told.until(lambda: "waiting for 1 other replicas" in told.log())
    time.sleep(1)  # long enough for TensorFlow to have taken the signal; earlier it is easy
    told.processes[0].terminate()
    assert (late.end(), told.end()) == ([142], [143]), told.log()
    assert "another replica did not appear in time" in late.words()


@pytest.mark.parametrize(
    ("data", "code", "exit_code", "words"),
    [
        ("wrong", "", 3, "a label of the dataset is not one of its classes"),
        ("nowhere", "", 3, "manifest.json: it is not there"),
        (
            "classification",
            "import nothing_like_this\n",
            2,
            "ModuleNotFoundError: No module named 'nothing_like_this' \\(.*own.py, line 1\\)",
        ),
    ],
)
def test_what_is_the_users_to_mend_is_said(
    jobs: Start, data: str, code: str, exit_code: int, words: str
) -> None:
    job = jobs("wrong", data=data, code=code)
    assert job.end() == [exit_code], job.log()
    assert re.search(words, job.words()), job.words()
    assert not (job.output / "completion.json").exists()


@pytest.mark.slow
def test_a_replica_without_its_gpus_trains_nothing(jobs: Start) -> None:
    job = jobs("gpus", EXPECTED_GPUS="1")
    assert job.end() == [2], job.log()
    assert "this replica does not see its GPUs. Received: 0 GPUs; " in job.words()
    assert not (job.output / "progress.jsonl").exists()


def _kill_trainer(supervisor: int) -> None:
    """Kill the command of a supervisor, as the kernel does when memory runs out."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
