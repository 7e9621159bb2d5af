"""Measures the time from a trainer's death to the next step of all replicas.

    python -m benchmarks.restart [--quick]

A chief and a worker train under their supervisors. The benchmark kills the trainer of the chief and
of the worker in turn. The clock stops at the checkpoint of the next step; the trainer writes a
checkpoint at every opportunity. The new trainer must first import TensorFlow. It prints a table
and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import prepared
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.uploader import push

ROOT = Path(__file__).parents[1]
VICTIMS = ("worker", "chief")
REPEATS = {False: 5, True: 1}
PATIENCE = 300.0  # seconds


@dataclass
class Job:
    """A chief and a worker.

    Attributes:
        folder: A folder with one subfolder per replica.
        supervisors: The supervisors, by `chief` and `worker`.
    """

    folder: Path
    supervisors: Mapping[str, subprocess.Popen[bytes]]

    def steps(self) -> set[str]:
        """Return the names of the existing checkpoints."""
        folder = self.folder / "chief/output/checkpoints"
        return {path.name for path in folder.glob("[0-9]*")} if folder.exists() else set()

    def trainer(self, replica: str) -> int:
        """Return the process of the trainer under a supervisor."""
        pid = self.supervisors[replica].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def settle(self) -> None:
        """Wait until the training continues."""
        before = self.steps()
        self._wait(lambda: len(self.steps() - before) > 1, "a checkpoint")

    def kill(self, replica: str) -> float:
        """Kill a trainer and return the seconds until the next step of the training."""
        victim = self.trainer(replica)
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        others = {"worker": "chief", "chief": "worker"}
        peer = self.trainer(others[replica])
        # Output of the chief before it notices the kill does not count.
        self._wait(lambda: not _lives(victim) and not _lives(peer), "the end of both trainers")
        before = self.steps()
        self._wait(lambda: bool(self.steps() - before), "the next step")
        return time.monotonic() - start

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline or any(it.poll() for it in self.supervisors.values()):
                logs = "\n".join((self.folder / name / "log").read_text() for name in VICTIMS)
                raise SystemExit(f"{logs[-4000:]}\nno {what}")
            time.sleep(0.01)


@contextmanager
def job(folder: Path, dataset: S3Address, secret: Path) -> Iterator[Job]:
    """Run a chief and a worker that train without end."""
    hosts = {"chief": [_free()], "worker": [_free()]}
    supervisors = {}
    for name in VICTIMS:
        (folder / name).mkdir(parents=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            MOUNT_VARIABLE: str(secret),
            "RUN_ID": "bench",
            "DATASET_URI": str(dataset),
            "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
            "EPOCHS": "1000000",
            "BATCH_SIZE": "256",
            "TRAIN_OPTIONS": '{"checkpoint_seconds": 0.05}',
            "EXPECTED_GPUS": "0",
            "REPLICAS_ON_THIS_MACHINE": "2",
            "JOB_DIR": str(folder / name),
            "OUTPUT_DIR": str(folder / name / "output"),
            "TERMINATION_LOG": str(folder / name / "words"),
            "TF_CONFIG": json.dumps({"cluster": hosts, "task": {"type": name, "index": 0}}),
            "START_DEADLINE": "240",
            "MAX_RESTARTS": "1000",
        }
        command = [sys.executable, "-m", "kfp_tfjob.supervisor", "--"]
        with open(folder / name / "log", "wb") as log:
            supervisors[name] = subprocess.Popen(
                [*command, sys.executable, "-m", "kfp_tfjob.trainer"],
                env=environment,
                stdout=log,
                stderr=log,
            )
    try:
        yield Job(folder, supervisors)
    finally:
        for process in supervisors.values():
            process.kill()
            process.wait()


def _free() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kill of each, as a trial")
    repeats = REPEATS[parser.parse_args().quick]
    found: dict[str, list[float]] = {who: [] for who in VICTIMS}
    with tempfile.TemporaryDirectory() as temporary, Server.start(Path(temporary) / "s3") as server:
        server.store().make_bucket("bench")
        dataset = S3Address("bench", "datasets/rows")
        data = prepared.write(Path(temporary) / "data", 100_000, 64)
        push(server.store(), data, dataset, "dataset")
        for turn in range(repeats):
            with job(Path(temporary) / str(turn), dataset, server.secret) as pair:
                for victim in VICTIMS:
                    pair.settle()
                    found[victim].append(pair.kill(victim))
    print(f"seconds from SIGKILL to the next step, median of {repeats} (worst)")
    for who, seconds in found.items():
        print(f"{who:6} {median(seconds):6.2f} ({max(seconds):.2f})")
    print(json.dumps({"repeats": repeats, "cores": os.cpu_count(), "seconds": found}))


if __name__ == "__main__":
    main()
