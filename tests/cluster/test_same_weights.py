"""The same weights on each kind of job and on one machine, undisturbed and after random kills.

`make test-cluster` runs the undisturbed trainings, `make test-kinds KILLS=10` longer ones, both
undisturbed and with that many kills of the chief's or the worker's trainer or supervisor, each
after a random step.
"""

import json
import os
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_tfjob.cluster.local.backend import LocalBackend
from kfp_tfjob.components.launch_tfjob.records import Records
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.uploader import push
from tests.cluster.launches import LARGE, LIMITS, Launch
from tests.cluster.processes import wait_until
from tests.local import tiny_dataset

pytestmark = pytest.mark.cluster
KILLS = int(os.environ.get("KILLS") or 3)
SEED = 24
BATCH, STEPS = 20, tiny_dataset.ROWS["train"] // 20
SHORT, LONG = 2, KILLS + 2  # epochs of the trainings without and beside killed ones
OPTIONS = LIMITS | {
    "seed": 7,
    "checkpoint_seconds": 0.5,
    "max_restarts": KILLS,
    "stall_timeout_seconds": 900,
    "deadline_seconds": 3600,
}
_SECONDS = 3600.0
# Steps are slow enough that each checkpoint is in the store before the next kill.
CODE = """
import time

import keras
from kfp_tfjob.trainer.models import mlp

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)

def build_model(dataset, **hyperparameters):
    return mlp(dataset, **hyperparameters)

def callbacks(dataset):
    return [Slow()]
"""


@dataclass
class Training:
    """One training of the model.

    Attributes:
        between: What happens once its first checkpoint is stored.
    """

    where: str
    launch: Launch
    backend: Any
    kills: int = 0
    epochs: int = LONG
    queue: str = ""
    between: Callable[[], None] | None = None

    def run(self) -> str:
        """Return the SHA-256 of the weights after the last step."""
        records, draw = Records(self.launch.step), random.Random(f"{SEED} {self.where}")
        self.launch.start(self.spec(), self.backend)
        if self.between:
            self.until(records.newest_checkpoint)
            self.between()
        reached = 0
        for kill in range(self.kills):
            step = max(kill * STEPS + draw.randrange(1, STEPS), reached + 1)
            self.until(lambda step=step: records.newest_checkpoint() >= step)
            self.kill(draw.choice(["0", "1"]), draw.choice(["trainer", "supervisor"]))
            reached = records.newest_checkpoint()
        ended = self.launch.join(_SECONDS)
        assert ended.verdict == "succeeded", ended.message
        lines = self.launch.step.store.read(self.launch.step.run.progress).splitlines()
        (final,) = [line for line in map(json.loads, lines) if line["event"] == "final"]
        assert final["step"] == self.epochs * STEPS
        return final["trained_weights_sha256"]

    def spec(self) -> JobSpec:
        step, kind = self.launch.step, self.launch.kind.name.lower()
        pods = LARGE | ({"queue": self.queue} if self.queue else {})
        values = self.launch.parameters({"all": pods}, 1, 0, OPTIONS | {"job": kind}, BATCH)
        trained = {"train_epochs": self.epochs, "model_entry": "slow:build_model"}
        spec = JobSpec.parse(**values | trained)
        return replace(spec, code_uri=str(step.run.code))

    def until(self, true: Callable[[], object]) -> None:
        """Wait for something to become true while the training runs."""
        assert wait_until(lambda: self.launch.ended or true(), _SECONDS), self.where
        assert not self.launch.ended, (self.where, self.launch.ended)

    def kill(self, rank: str, whom: str) -> None:
        """Send SIGKILL to the trainer of a replica, or to the supervisor above it."""
        found: list[psutil.Process] = []
        self.until(lambda: found.extend(self.trainers(rank)) or found)
        with suppress(psutil.NoSuchProcess):  # it has just ended with the other replica
            victim = found[0].parent() if whom == "supervisor" else found[0]
            assert victim and victim.cmdline()[1] == ("-S" if whom == "supervisor" else "-m")
            victim.kill()

    def trainers(self, rank: str) -> Iterator[psutil.Process]:
        """Yield the trainer of a replica, which this host sees in any container."""
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [])[1:3] == ["-m", "kfp_tfjob.trainer"]:
                with suppress(psutil.Error):
                    found = process.environ()
                    if (found.get("RUN_ID"), found.get("RANK")) == (self.launch.step.run_id, rank):
                        yield process


def code(folder: Path) -> Path:
    folder.mkdir()
    (folder / "slow.py").write_text(CODE)
    return folder


@pytest.fixture
def trainings(
    launch: Launch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[list[Training]]:
    """Trainings on each kind of job and on this machine, one each for every number of kills."""
    epochs, all_kills = request.param
    launch.send_dataset(tmp_path / "data")
    folder = code(tmp_path / "code")
    secret = tmp_path / "secrets" / "objstore-cred"
    shutil.copytree(launch.objects.secret, secret)
    found = []
    with ExitStack() as stack:
        local = stack.enter_context(LocalBackend(tmp_path / "jobs", secret.parent))
        for kills in all_kills:
            for where, kind in (("TFJob", TFJOB), ("JobSet", JOBSET), ("local", TFJOB)):
                step = replace(launch.step, run_id=f"r{uuid.uuid4().hex[:8]}")
                one = stack.enter_context(replace(launch, step=step, kind=kind, backends=[]))
                push(step.store, folder, step.run.code, "code", run_id=step.run_id)
                backend = local if where == "local" else one.backend()
                found.append(Training(f"{where}, {kills} kills", one, backend, kills, epochs))
        yield found


@pytest.mark.parametrize(
    "trainings",
    [
        pytest.param((SHORT, (0,)), id="undisturbed"),
        pytest.param((LONG, (0, KILLS)), id="and killed", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_weights_do_not_depend_on_the_kind_of_job(trainings: list[Training]) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(Training.run, trainings))
    assert len(set(found)) == 1, dict(zip([it.where for it in trainings], found, strict=True))
