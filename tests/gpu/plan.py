"""What `make test-gpu` does on a machine with GPUs, one check after another.

Each check is a function of a Session. It returns the figures of its line in the table, and raises
CheckFailed with the reason. The checks of the trainer start it under its supervisor, as a pod does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kfp_tfjob.jobs.nccl_log import Transports
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from tests.gpu.cards import Card, watched
from tests.local import tiny_dataset
from tests.local.trainer_jobs import ROOT, Job
from tests.waiting import until

PRECISION = "mixed_bfloat16"
_OLD = ("V100", "T4")
OLDER = "mixed_float16"  # before compute capability 8.0, a card multiplies no bfloat16
# Size, batch per GPU and steps: about 7 and 3 TFLOP per step.
MODELS = {"dense": (8192, 4096, 20), "conv": (256, 64, 20)}
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME")


class CheckFailed(Exception):
    """A check has another result than expected; the message says both."""


@dataclass
class Session:
    """What the checks share.

    Attributes:
        cards: The GPUs of this machine; without any, the jobs train on the CPU.
        folder: For the files of the jobs.
        dataset: A small dataset in the store.
        secret: The folder with the store's keys.
        seconds: Returns the seconds that the current check may still take.
    """

    cards: list[Card]
    folder: Path
    dataset: S3Address
    secret: Path
    seconds: Callable[[], float]

    @property
    def precision(self) -> str:
        """The policy of Keras that these cards compute fast."""
        names = [card.name for card in self.cards]
        return OLDER if any(old in name for name in names for old in _OLD) else PRECISION

    @contextmanager
    def job(self, name: str, processes: int = 1, **options: Any) -> Iterator[Job]:
        """Start the trainer on all cards, and end what is left of it.

        Args:
            name: A folder for its files.
            processes: Number of replicas, which share the cards equally.
            options: Of TRAIN_OPTIONS.
        """
        options = {"mixed_precision": self.precision} | options
        gpus = len(self.cards) // processes
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment |= {
            "PYTHONPATH": str(ROOT),
            MOUNT_VARIABLE: str(self.secret),
            "RUN_ID": name,
            "ATTEMPT": "1",
            "DATASET_URI": str(self.dataset),
            "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
            "EPOCHS": "6",
            "BATCH_SIZE": str(8 * max(gpus, 1) * processes),
            "EXPECTED_GPUS": str(gpus),
            "TRAIN_OPTIONS": json.dumps(options),
            "MAX_RESTARTS": "3",
        }
        job = Job(self.folder / name, environment, processes)
        try:
            yield job.start()
        finally:
            for process in job.processes.values():
                if process.poll() is None:
                    parent = psutil.Process(process.pid)
                    for child in (*parent.children(recursive=True), parent):
                        child.kill()

    def end(self, job: Job) -> None:
        """Wait for a job.

        Raises:
            CheckFailed: It failed, or did not end in time.
        """
        try:
            codes = [process.wait(self.seconds()) for process in job.processes.values()]
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(f"no end in time: {_last_line(job)}") from error
        if any(codes):
            raise CheckFailed(f"exit codes {codes}: {_last_line(job)}")


def tensorflow_sees_the_cards(session: Session) -> str:
    """TensorFlow lists the cards that nvidia-smi lists, and has kernels for them."""
    code = (
        "from kfp_tfjob.features.tensorflow_import import load; load(None)\n"
        "import tensorflow as tf; from kfp_tfjob.trainer.gpus import Build\n"
        "print(Build.here()); print(len(tf.config.list_physical_devices('GPU')))"
    )
    build, count = _python(session, "-c", code).splitlines()[-2:]
    if int(count) != len(session.cards):
        raise CheckFailed(f"{build} lists {count} GPUs, nvidia-smi {len(session.cards)}")
    return f"{build}; {count} GPUs"


def training_in_mixed_precision(session: Session) -> str:
    """The trainer uses every card in one process, and every card ends with equal weights."""
    with session.job("mixed") as job:
        session.end(job)
    count = max(len(session.cards), 1)
    if job.final["replicas"] != count:
        raise CheckFailed(f"the trainer used {job.final['replicas']} replicas, not {count}")
    return f"{session.precision}, {count} replicas, loss {job.final['metrics']['loss']:.4f}"


def equal_weights_after_a_kill(session: Session) -> str:
    """With deterministic_ops, a training that is killed ends with the same bytes."""
    options = {"deterministic_ops": True, "checkpoint_seconds": 0.01}
    with session.job("undisturbed", **options) as undisturbed:
        session.end(undisturbed)
    with session.job("killed", **options) as killed:
        until(lambda: killed.checkpoint() > 0, "a checkpoint", session.seconds())
        os.kill(killed.trainer(0), signal.SIGKILL)
        session.end(killed)
    if not killed.final["restarts"]:
        raise CheckFailed("the training had ended before the kill")
    hashes = [job.final["trained_weights_sha256"] for job in (undisturbed, killed)]
    if hashes[0] != hashes[1]:
        raise CheckFailed(f"the weights are {hashes[1][:16]}, not {hashes[0][:16]}")
    return f"sha256 {hashes[0][:16]} both times"


def transports_within_a_pod(session: Session) -> str:
    """MirroredStrategy connects the cards of one process directly, not through the network."""
    transports = _transports([session.folder / "mixed" / "0"])
    if transports.networks:
        raise CheckFailed(f"within one process: {transports}")
    return str(transports)


def two_processes(session: Session) -> str:
    """Two replicas, each with half of the cards, train with NCCL and end with equal weights."""
    with session.job("two", processes=2) as job:
        session.end(job)
    if not job.final["weights_equal"]:
        raise CheckFailed("the replicas' weights differ")
    return str(_transports([job.folder / "0", job.folder / "1"]))


def speed(kind: str) -> Callable[[Session], str]:
    """Return the check that measures one of MODELS, and compares memory with nvidia-smi."""

    def check(session: Session) -> str:
        size, batch, steps = MODELS[kind]
        count = len(session.cards)
        options = {"gpus": count, "size": size, "batch": batch * count, "steps": steps}
        options["precision"] = session.precision
        flags = [f"--{name}={value}" for name, value in options.items()]
        with watched() as samples:
            text = _python(session, "-m", "tests.gpu.bench", kind, *flags)
        measured = json.loads(text.splitlines()[-1])
        if samples.used < measured["memory_mib"]:
            shown = f"{samples.used} MiB, TensorFlow counts {measured['memory_mib']:.0f}"
            raise CheckFailed(f"nvidia-smi shows {shown}")
        return figures(measured, session.cards[0], samples.used, samples.utilization)

    check.__doc__ = f"The trainer's step with a large {kind} model: share of the card's peak."
    return check


def figures(measured: dict[str, Any], card: Card, used: int, utilization: float | None) -> str:
    """Return the figures of a measurement for the table.

    Args:
        measured: The output of tests/gpu/bench.py.
        card: One of the cards.
        used: The largest MiB that nvidia-smi showed.
        utilization: The median percent that it showed; None if it showed none.
    """
    peak = (
        f"{measured['tflops'] / card.peak:.0%} of {card.peak:.0f}" if card.peak else "no peak known"
    )
    busy = "utilization not shown" if utilization is None else f"utilization {utilization:.0f}%"
    return (
        f"{measured['ms']:.1f} ms per step, {measured['tflops']:.0f} TFLOPS per GPU ({peak}),"
        f" {used} MiB used (TensorFlow's peak {measured['memory_mib']:.0f}), {busy}"
    )


@dataclass(frozen=True)
class Check:
    """A step of the plan.

    Attributes:
        name: For the table.
        run: Returns the figures.
        seconds: The longest that it may take; together they stay below ten minutes.
        gpus: The cards that it needs.
    """

    name: str
    run: Callable[[Session], str]
    seconds: int
    gpus: int = 1


PLAN = (
    Check("TensorFlow and nvidia-smi", tensorflow_sees_the_cards, 45),
    Check("all GPUs, mixed precision", training_in_mixed_precision, 90),
    Check("equal weights after a kill", equal_weights_after_a_kill, 150),
    Check("NCCL in one pod", transports_within_a_pod, 5, gpus=2),
    Check("two replicas with NCCL", two_processes, 90, gpus=2),
    Check("dense model", speed("dense"), 90),
    Check("convolution", speed("conv"), 90),
)


def write_dataset(folder: Path, server: Any) -> S3Address:
    """Write the small dataset of the trainer's tests to a store."""
    tiny_dataset.write(folder)
    return tiny_dataset.send(server.store(), folder, S3Address("test", "gpu/dataset"))


def _transports(folders: list[Path]) -> Transports:
    logs = [path for folder in folders for path in folder.glob("nccl.*.log")]
    transports = Transports.read(line for path in logs for line in path.read_text().splitlines())
    if not transports:
        raise CheckFailed(f"NCCL logged no connection in {len(logs)} files")
    return transports


def _python(session: Session, *arguments: str) -> str:
    """Run a program of the checkout; return its standard output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=session.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=session.seconds(),
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed("no end in time") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CheckFailed(lines[-1])
    return done.stdout


def _last_line(job: Job) -> str:
    lines = [line for at in job.processes for line in job.log(at).splitlines() if line.strip()]
    return lines[-1] if lines else "no log"
