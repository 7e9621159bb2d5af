"""Supervisors as processes, and what they leave in the folder of a replica."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.waiting import until

SECONDS = 120.0  # only what hangs reaches it


def tf_config(hosts: Sequence[str], at: int) -> str:
    """Return the TF_CONFIG of one of these replicas; the first is the chief."""
    task = {"type": "worker" if at else "chief", "index": max(at - 1, 0)}
    return json.dumps({"cluster": {"chief": hosts[:1], "worker": hosts[1:]}, "task": task})


class Replica:
    """Starts supervisors in a folder of their own, and ends what is left."""

    def __init__(self, supervisor: Path, folder: Path) -> None:
        self.supervisor = supervisor
        self.output = folder / "output"
        self.words = folder / "words"
        self.words.touch()
        self.environment = {
            "PATH": os.environ["PATH"],
            "OUTPUT_DIR": str(self.output),
            "RUN_ID": "run",
            "ATTEMPT": "2",
            "TERMINATION_LOG": str(self.words),
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(self.supervisor), "--", *command],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *command: str, **environment: str) -> tuple[int, str]:
        process = self.start(*command, **environment)
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            process.stdout.close()

    @property
    def completion(self) -> Path:
        return self.output / "completion.json"

    def request(self) -> dict[str, Any]:
        path = self.output / ".uploader" / "flush-request.json"
        until(path.exists)
        return json.loads(path.read_text())

    def reply(self, **content: Any) -> None:
        partial = self.output / ".uploader" / ".reply.part"
        partial.write_text(json.dumps(content))
        partial.replace(self.output / ".uploader" / "flush-reply.json")
