"""The long proof of recovery: a training is killed at random times and ends in the same bytes.

Early stopping and a learning rate that follows the validation loss are on, so more than the weights
has to come back. `make test-trainer` runs it and prints the table of kills.
"""

import json
import logging
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import pytest

from kfp_tfjob.trainer import checkpoint_folder
from tests.local import tiny_dataset
from tests.local.trainer_jobs import Job, Start

pytestmark = pytest.mark.slow
log = logging.getLogger(__name__)

SEED = 20
BATCH = 6  # for two and for three replicas
EPOCHS = 6
STEPS = tiny_dataset.ROWS["train"] // BATCH
STARTING = -1  # a step before the first one
# The hook makes the training stop, and so write a checkpoint, every 20 steps.
CODE = """
import keras
from kfp_tfjob.trainer.models import mlp

class Hook(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass

def build_model(dataset, **hyperparameters):
    model = mlp(dataset, **hyperparameters)
    model.steps_per_execution = 20
    return model

def callbacks(dataset):
    return [Hook()]
"""
SETTINGS = {
    "code": CODE,
    "BATCH_SIZE": str(BATCH),
    "EPOCHS": str(EPOCHS),
    "HYPERPARAMETERS": '{"hidden": [200, 200], "dropout": 0.2}',
    "TRAIN_OPTIONS": json.dumps(
        {
            "checkpoint_seconds": 0.01,
            "early_stopping": {"patience": 4, "min_delta": 0.02, "restore_best_weights": True},
            "reduce_lr_on_plateau": {"patience": 1, "min_delta": 0.02, "factor": 0.3},
        }
    ),
    "MAX_RESTARTS": "10",
    "START_DEADLINE": "600",
}


@dataclass(frozen=True)
class Kill:
    number: int
    replicas: int
    whom: str
    replica: int
    sends: signal.Signals
    step: int  # not before there is a checkpoint of this step or a later one
    pause: float

    def __str__(self) -> str:
        owner = f"worker {self.replica - 1}" if self.replica else "chief"
        return f"{self.number:2d} of {self.replicas} {self.sends.name} {self.whom} of the {owner}"


def _kills() -> list[Kill]:
    """Twenty times and victims; two in the start, the others between the first step and the end."""
    draw = random.Random(SEED)
    kinds = [("trainer", signal.SIGKILL), ("supervisor", signal.SIGKILL)]
    kinds.append(("supervisor", signal.SIGTERM))
    found = []
    for number in range(20):
        whom, sends = kinds[number % 3]
        replicas = 3 if number % 5 == 4 else 2
        replica = number // 3 % replicas
        starting = number in (12, 14)
        step = STARTING if starting else draw.randrange(1, 4 * STEPS)
        pause = draw.uniform(0, 8) if starting else draw.uniform(0, 0.3)
        found.append(Kill(number, replicas, whom, replica, sends, step, pause))
    return found


@pytest.fixture(scope="module")
def resumed() -> list[int]:
    """The step from which each killed training went on."""
    return []


@pytest.fixture(scope="module")
def undisturbed(jobs: Start) -> Callable[[int], Job]:
    @cache
    def run(replicas: int) -> Job:
        job = jobs(f"undisturbed-{replicas}", replicas, **SETTINGS)
        assert job.end() == [0] * replicas, job.log()
        epochs = len(job.events("epoch"))
        assert 4 < epochs <= EPOCHS
        log.info("%d replicas: %d epochs, sha256 %s", replicas, epochs, _variables(job)[:16])
        return job

    return run


@pytest.mark.parametrize("kill", _kills(), ids=str)
def test_any_kill_ends_in_the_same_bytes(
    jobs: Start, undisturbed: Callable[[int], Job], resumed: list[int], kill: Kill
) -> None:
    job = jobs(f"kill-{kill.number}", kill.replicas, **SETTINGS)
    job.until(lambda: job.checkpoint() >= kill.step)
    job.trainer(kill.replica)  # a supervisor that has one knows what to do with a signal
    time.sleep(kill.pause)
    victim = job.processes[kill.replica].pid
    if kill.whom == "trainer":
        victim = job.trainer(kill.replica)
    os.kill(victim, kill.sends)
    killed = time.monotonic()
    if kill.whom == "supervisor":
        _end_the_others(job, kill)
        reached, before = job.checkpoint(), job.checkpoints()
        for replica in range(1, kill.replicas):
            # Only the chief has a volume.
            shutil.rmtree(job.folder / str(replica) / "data", ignore_errors=True)
        job.environment["ATTEMPT"] = "2"
        job.start()
    else:
        job.until(lambda: "restart 1 of 10" in job.log(kill.replica))
        reached, before = job.checkpoint(), job.checkpoints()
    job.until(lambda: bool(job.checkpoints() - before))
    seconds = time.monotonic() - killed
    assert job.end() == [0] * kill.replicas, "\n".join(map(job.log, range(kill.replicas)))
    expected = undisturbed(kill.replicas)
    equal = _variables(job) == _variables(expected)
    resumed.append(int(re.findall(r"from step (\d+)\n", job.log())[-1]))
    log.info(
        f"{kill!s:46} epoch {reached / STEPS:5.2f} resumed from step {resumed[-1]:4d}"
        f" after {seconds:5.1f} s, sha256 {'equal' if equal else 'DIFFERENT'}"
    )
    assert equal
    assert job.final["trained_weights_sha256"] == expected.final["trained_weights_sha256"]
    assert job.final["metrics"] == expected.final["metrics"]
    assert [line["metrics"] for line in job.events("epoch")] == [
        line["metrics"] for line in expected.events("epoch")
    ]
    assert (job.final["restarts"] > 0) == (kill.whom == "trainer")


def test_half_of_the_kills_were_in_mid_epoch(resumed: list[int]) -> None:
    assert sum(bool(it % STEPS) for it in resumed) >= len(resumed) / 2


@pytest.mark.parametrize("replicas", [2, 3])
def test_sigterm_during_the_export_loses_nothing(
    jobs: Start, undisturbed: Callable[[int], Job], replicas: int
) -> None:
    job = jobs(f"export-{replicas}", replicas, **SETTINGS)
    job.until(lambda: "weights sha256" in job.log())
    for process in job.processes.values():
        process.terminate()
    assert job.end() == [143] * replicas, job.log()
    again = jobs(f"export-{replicas}", replicas, folder=job.folder, ATTEMPT="2", **SETTINGS)
    assert again.end() == [0] * replicas, again.log()
    assert _variables(again) == _variables(undisturbed(replicas))
    expected = undisturbed(replicas).final["trained_weights_sha256"]
    assert again.final["trained_weights_sha256"] == expected


def _end_the_others(job: Job, kill: Kill) -> None:
    """End what is left of an attempt, as the launcher does when a pod of a job has failed."""
    first = job.processes[kill.replica].wait(120)
    trained = "training 6 epochs" in job.log() and kill.step != STARTING
    if kill.sends is signal.SIGTERM and trained:
        # One that is told to stop stops all of them, after the same step, saved.
        assert job.end() == [143] * kill.replicas, job.log()
        ends = [re.findall(r"after step (\d+); the state is saved", job.log(at)) for at in range(2)]
        assert ends == [[str(job.checkpoint())]] * 2
        return
    assert first == (-signal.SIGKILL if kill.sends is signal.SIGKILL else 143)
    for process in job.processes.values():
        process.terminate()
    assert set(job.end()) <= {-signal.SIGKILL, 143}, job.log()


def _variables(job: Job) -> str:
    """Return the SHA-256 of every variable of the model and the optimizer after the last step."""
    found = checkpoint_folder.read_newest(job.output / "checkpoints")
    assert found.position.step == job.final["step"]
    digest = sha256()
    for name, value in found.variables:
        digest.update(name.encode() + value.tobytes())
    return digest.hexdigest()
