"""Workers as processes of this machine, for a local run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kfp_tfjob.components.prepare_data.executors import worker, worker_process
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.prepare_data.executors.distributed import Workers
from kfp_tfjob.storage.errors import Problem, StepError

_SECONDS = 10.0  # to find the scheduler


class LocalWorkers(Workers):
    """Processes of this machine, each with one process for tasks.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count, self.host, self.port = count, "127.0.0.1", 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder: TemporaryDirectory[str] | None = None

    def start(self, scheduler: str, certificate: Certificate) -> None:
        """Start them; they read the certificate from a folder that only this user may read."""
        self._folder = TemporaryDirectory(prefix="prepare-data-workers-")
        certificate.write(Path(self._folder.name))
        for number in range(self.count):
            environment = os.environ | {
                worker_process.SCHEDULER: scheduler,
                worker_process.SCHEDULER_SECONDS: str(_SECONDS),
                worker_process.CERTIFICATE_FOLDER: self._folder.name,
                worker.STEP_VERSION: code_version(),
                worker_process.NUMBER: str(number),
            }
            command = [sys.executable, "-m", worker.__name__, worker.END_WITH_PARENT]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            self.processes.append(process)

    def check(self, connected: int) -> None:
        """Fail when all of them have ended."""
        codes = [process.poll() for process in self.processes]
        if connected or None in codes:
            return
        raise StepError(
            Problem(
                "all workers of prepare_data have ended",
                received="exit codes " + ", ".join(map(str, codes)),
                fix="read their lines above",
            )
        )

    def stop(self) -> None:
        """End them at once."""
        for process in self.processes:
            process.kill()  # its processes end with it
        for process in self.processes:
            process.wait()
        if self._folder:
            self._folder.cleanup()
