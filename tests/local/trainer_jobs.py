"""The replicas of a training as processes, each under its supervisor."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_dataset

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
        ports = free_ports(self.size)
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


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


Start = Callable[..., Job]
