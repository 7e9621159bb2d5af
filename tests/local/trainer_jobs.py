"""Jobs of the trainer as processes: a supervisor for each replica, TF_CONFIG on loopback."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from kfp_tfjob.supervisor.pack import NAME, pack
from tests.local import tiny_dataset
from tests.local.replica import tf_config
from tests.ports import free_ports
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SECONDS = 600.0  # of one job; an idle machine needs a thirtieth of it
BATCH = 4
STEPS = tiny_dataset.ROWS["train"] // BATCH


@dataclass
class Job:
    """The replicas of one attempt, as processes."""

    folder: Path  # with a folder for each replica; the chief's is `0`
    environment: dict[str, str]
    size: int = 1
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = free_ports(self.size)
        self._hosts = [f"127.0.0.1:{port}" for port in self.ports]

    @property
    def output(self) -> Path:
        return self.folder / "0" / "output"

    def log(self, replica: int = 0) -> str:
        return (self.folder / str(replica) / "log").read_text()

    def start(self, *replicas: int) -> Self:
        for at in replicas or range(self.size):
            job_dir = self.folder / str(at)
            (job_dir / "code").mkdir(parents=True, exist_ok=True)
            (job_dir / "words").write_text("")
            environment = {
                "JOB_DIR": str(job_dir),
                "OUTPUT_DIR": str(job_dir / "output"),
                "TERMINATION_LOG": str(job_dir / "words"),
                "EXPECTED_REPLICAS": str(self.size),
                "REPLICAS_ON_THIS_MACHINE": str(self.size),
            }
            if self.size > 1:
                environment["TF_CONFIG"] = tf_config(self._hosts, at)
            pack(job_dir / NAME)
            command = [sys.executable, str(job_dir / NAME), "--"]
            with open(job_dir / "log", "wb") as log:
                self.processes[at] = subprocess.Popen(
                    [*command, sys.executable, "-m", "kfp_tfjob.trainer"],
                    env=environment | self.environment,
                    stdout=log,
                    stderr=log,
                    cwd=job_dir,
                )
        return self

    def trainer(self, replica: int) -> int:
        supervisor = psutil.Process(self.processes[replica].pid)
        children: list[psutil.Process] = []
        until(lambda: children.extend(supervisor.children()) or children, "a trainer", SECONDS)
        return children[0].pid

    def end(self) -> list[int]:
        deadline = time.monotonic() + SECONDS
        return [
            self.processes[at].wait(max(deadline - time.monotonic(), 0.1))
            for at in range(self.size)
        ]

    def words(self, replica: int = 0) -> str:
        return (self.folder / str(replica) / "words").read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.output / "progress.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    @property
    def final(self) -> dict[str, Any]:
        (found,) = self.events("final")
        return found

    def checkpoints(self) -> set[int]:
        return {int(item.name) for item in self.output.glob("checkpoints/[0-9]*")}

    def checkpoint(self) -> int:
        return max(self.checkpoints(), default=0)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert all(item.poll() is None for item in self.processes.values()), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)


Start = Callable[..., Job]
