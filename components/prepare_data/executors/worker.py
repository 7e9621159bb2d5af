"""The program of a worker: supervises processes that do tasks for the scheduler in the step.

There is one process for each core (`worker_process.py`). One that dies is replaced. When the step
is gone, even if nobody could say goodbye, the processes end by themselves, and so does the worker.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from kfp_tfjob.components.prepare_data.executors import worker_process
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.prepare_data.executors.worker_process import end_with_parent
from kfp_tfjob.components.step_job_pod import ended
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

log = logging.getLogger(__spec__.name)  # also as a program

# The environment of a worker, besides that of its processes.
STEP_VERSION, PROCESSES = "KFP_TFJOB_STEP_VERSION", "KFP_TFJOB_WORKER_PROCESSES"
END_WITH_PARENT = "--end-with-parent"  # which holds the other end of stdin

_MOST_LOST = 20  # processes of one worker that may die; Kubernetes counts its pods
_PAUSE = 1.0
_POLL = 0.2


def main(arguments: list[str]) -> int:
    """Run a worker to its end; return its exit code."""
    if END_WITH_PARENT in arguments:
        end_with_parent()
    return ended("prepare_data", _supervise)


def _supervise() -> None:
    """Run the processes until the scheduler is gone.

    Raises:
        ConfigurationError: This is not the code of the step.
        StepError: Too many processes died.
    """
    _check_version(os.environ[STEP_VERSION])
    processes = _Processes(int(os.environ.get(PROCESSES) or 1))
    signal.signal(signal.SIGTERM, lambda number, _frame: processes.end_now(128 + number))
    processes.run()


def _check_version(of_step: str) -> None:
    """Refuse to work for a step with other code: its results might differ.

    Raises:
        ConfigurationError: It has.
    """
    here = code_version()
    if of_step == here:
        return
    raise ConfigurationError(
        Problem(
            "the workers of prepare_data run another version than its step",
            received=f"worker: {here}",
            expected=f"step: {of_step}",
            fix="compile the pipeline with the image's digest instead of a tag, so that every node"
            " pulls the same image",
        )
    )


@dataclass
class _Processes:
    """The processes of this worker.

    Attributes:
        count: How many there are.
    """

    count: int
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lost: int = 0

    def run(self) -> None:
        """Return when all of them have ended because the scheduler is gone.

        Raises:
            StepError: Too many died.
        """
        try:
            for number in range(self.count):
                self._start(number)
            while self._running:
                time.sleep(_POLL)
                for number, process in list(self._running.items()):
                    if process.poll() is not None:
                        del self._running[number]
                        self._after(number, process.returncode)
        finally:
            self._kill()

    def _start(self, number: int) -> None:
        # Without the variable, the tasks of all processes together would use cores² threads.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", worker_process.__name__]
        self._running[number] = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)

    def _after(self, number: int, code: int) -> None:
        if code == 0:
            return
        if code == worker_process.NO_SCHEDULER:
            log.info("no step answers at %s", os.environ[worker_process.SCHEDULER])
            return
        self._lost += 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._lost > _MOST_LOST:
            raise StepError(
                Problem(
                    f"{_MOST_LOST} processes of this worker have died",
                    received=f"the last one {how}",
                    fix="raise pod.prepare.memory, or lower pod.prepare.cpu, which is the number of"
                    " processes of a worker",
                )
            )
        log.warning("a process of this worker %s; another one takes its place", how)
        time.sleep(_PAUSE)
        self._start(number)

    def _kill(self) -> None:
        for process in self._running.values():
            process.kill()

    def end_now(self, code: int) -> None:
        """End this program and its processes: there is nothing to save."""
        self._kill()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
