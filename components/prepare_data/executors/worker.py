"""The program of a worker: does tasks of prepare_data for the scheduler in its step.

It supervises processes, one for each core, in which Dask's worker runs one task at a time. A
process that dies is replaced, and a task that takes too long ends its process. When the step is
gone, even if nobody could say goodbye, the processes end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.step import log_to_stdout
from kfp_tfjob.components.step_job_pod import ended
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

log = logging.getLogger(__name__)

# The environment of a worker.
SCHEDULER, CERTIFICATE_FOLDER = "KFP_TFJOB_SCHEDULER", "KFP_TFJOB_CERTIFICATE"
STEP_VERSION, PROCESSES = "KFP_TFJOB_STEP_VERSION", "KFP_TFJOB_WORKER_PROCESSES"
SCHEDULER_SECONDS = "KFP_TFJOB_SCHEDULER_SECONDS"
NUMBER = "JOB_COMPLETION_INDEX"  # Kubernetes sets it
END_WITH_PARENT = "--end-with-parent"  # which holds the other end of stdin
_ONE = "--one"

DEFAULT_SECONDS = 60.0  # to find the scheduler
_NO_SCHEDULER = 75  # exit code of a process
_MOST_LOST = 20  # processes of one worker that may die; Kubernetes counts its pods
_PAUSE = 1.0
_POLL = 0.2


def main(arguments: list[str]) -> int:
    """Run a worker to its end; return its exit code."""
    if END_WITH_PARENT in arguments or _ONE in arguments:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if _ONE in arguments:
        log_to_stdout()
        return _one()
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
        command = [sys.executable, "-m", __spec__.name, _ONE]
        self._running[number] = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)

    def _after(self, number: int, code: int) -> None:
        if code == 0:
            return
        if code == _NO_SCHEDULER:
            log.info("no step answers at %s: this worker ends", os.environ[SCHEDULER])
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


def _one() -> int:
    """Do tasks in this process, one after the other, until the scheduler is gone."""
    from kfp_tfjob.components.prepare_data.executors import dask_settings

    dask_settings.use()
    return asyncio.run(_serve(os.environ[SCHEDULER]))


async def _serve(address: str) -> int:
    from distributed import Worker

    from kfp_tfjob.components.prepare_data.executors.dask_settings import NOWHERE

    class Reasoned(Worker):
        """A worker that knows why it has closed."""

        why = ""

        async def close(self, *args: Any, reason: str = "worker-close", **more: Any) -> Any:
            self.why = self.why or reason
            return await super().close(*args, reason=reason, **more)

    certificate = Certificate.read(Path(os.environ[CERTIFICATE_FOLDER]))
    seconds = float(os.environ.get(SCHEDULER_SECONDS) or DEFAULT_SECONDS)
    worker = Reasoned(
        address,
        nthreads=1,
        # A worker may come back before the scheduler has noticed that it was gone.
        name=f"{os.environ.get(NUMBER, '0')}/{uuid4().hex[:8]}",
        security=certificate.security(),
        memory_limit=0,
        death_timeout=seconds,
        dashboard_address=NOWHERE,
        dashboard=False,
    )
    try:
        await worker
    except (TimeoutError, OSError, RuntimeError) as error:
        log.info("cannot connect to %s for %g s: %s", address, seconds, _first(error))
        return _NO_SCHEDULER
    await worker.finished()
    return 0 if worker.why == "scheduler-close" else 1


def _first(error: BaseException) -> str:
    """Return the first cause of an error."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return f"{type(error).__name__}: {error}"


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
