"""Measures what MLflow costs a training: CPU seconds of an epoch, with and without it.

    python -m benchmarks.tracking [--quick]

One chief trains on a prepared dataset, in turn with and without MLflow's own server, which runs
beside it. The process that talks to MLflow is counted apart from the trainer. Its seconds before
the first epoch are those of a run with one epoch. It prints a table and, as the last line, one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import prepared
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.secret_keys import MLFLOW_KEY
from kfp_tfjob.uploader import push
from tests.mirrors.mlflow_server import Server as MlflowServer

ROOT = Path(__file__).parents[1]
ROWS, FEATURES, BATCH = 100_000, 64, 256
EPOCHS = 20
REPEATS = {False: 3, True: 1}
_FOLLOWER = b"kfp_tfjob.trainer.mlflow_run"
_LOOK = 0.02  # seconds between two looks at the process that talks to MLflow
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU seconds of one training.

    Attributes:
        trainer: Of the trainer.
        mlflow: Of the process that talks to MLflow; 0 without it.
        memory: The peak of that process's resident memory in MiB.
        wall: Seconds of the whole training.
    """

    trainer: float
    mlflow: float
    memory: float
    wall: float


def train(folder: Path, dataset: S3Address, secret: Path, epochs: int, server: str) -> Usage:
    """Train once; without MLflow if `server` is empty."""
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        MOUNT_VARIABLE: str(secret),
        "RUN_ID": folder.name,
        "DATASET_URI": str(dataset),
        "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
        "EPOCHS": str(epochs),
        "BATCH_SIZE": str(BATCH),
        "EXPECTED_GPUS": "0",
        "JOB_DIR": str(folder),
        "OUTPUT_DIR": str(folder / "output"),
        "TERMINATION_LOG": str(folder / "words"),
    } | ({MLFLOW_KEY: server} if server else {})
    start = time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kfp_tfjob.trainer"], env=environment, stdout=log, stderr=log
        )
    seconds = memory = 0.0
    # The usage that wait4 returns includes MLflow's process only if that ended within the 20 s for
    # which the trainer waits. So the trainer's own time is read before it is waited for.
    while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        for child in _followers(process.pid):
            seconds, memory = max(seconds, _cpu(child)), max(memory, _memory(child))
        time.sleep(_LOOK)
    wall, trainer = time.monotonic() - start, _cpu(process.pid)
    if process.wait():
        raise SystemExit((folder / "log").read_text()[-3000:])
    return Usage(trainer, seconds, memory, wall)


def _followers(pid: int) -> list[int]:
    """Return the trainer's process that talks to MLflow.

    Other children do not count, and neither does this one between fork and exec, when its memory is
    the trainer's.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        return [
            int(child)
            for child in children
            if _FOLLOWER in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
    except OSError:
        return []  # one of them has ended


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak[0]) / 1024 if peak else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition, as a trial")
    repeats = REPEATS[parser.parse_args().quick]
    usages: dict[tuple[bool, int], list[Usage]] = {}
    with tempfile.TemporaryDirectory() as temporary, Server.start(Path(temporary) / "s3") as store:
        store.store().make_bucket("bench")
        dataset = S3Address("bench", "datasets/rows")
        data = prepared.write(Path(temporary) / "data", ROWS, FEATURES)
        push(store.store(), data, dataset, "dataset")
        mlflow = MlflowServer(Path(temporary))
        try:
            mlflow.start()
            for turn in range(repeats):
                for epochs in (1, EPOCHS):
                    for enabled in (False, True):
                        folder = Path(temporary) / f"{turn}-{epochs}-{enabled}"
                        server = mlflow.uri if enabled else ""
                        usage = train(folder, dataset, store.secret, epochs, server)
                        usages.setdefault((enabled, epochs), []).append(usage)
        finally:
            mlflow.stop()

    def middle(enabled: bool, epochs: int, name: str) -> float:
        return median(getattr(usage, name) for usage in usages[enabled, epochs])

    def of_epoch(enabled: bool, name: str) -> float:
        return (middle(enabled, EPOCHS, name) - middle(enabled, 1, name)) / (EPOCHS - 1)

    results = {
        "trainer, an epoch, without MLflow": of_epoch(False, "trainer"),
        "trainer, an epoch, with MLflow": of_epoch(True, "trainer"),
        "MLflow's process, an epoch": of_epoch(True, "mlflow"),
        "MLflow's process, before the first": middle(True, 1, "mlflow"),
        "MLflow's process, MiB": middle(True, EPOCHS, "memory"),
        f"{EPOCHS} epochs, wall, without MLflow": middle(False, EPOCHS, "wall"),
        f"{EPOCHS} epochs, wall, with MLflow": middle(True, EPOCHS, "wall"),
    }
    print(f"CPU seconds, median of {repeats}; {ROWS} rows of {FEATURES} numbers")
    for name, value in results.items():
        print(f"{name:38} {value:8.3f}")
    print(json.dumps({"repeats": repeats, "cores": os.cpu_count()} | results))


if __name__ == "__main__":
    main()
