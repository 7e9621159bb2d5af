"""One process of a worker: Dask's worker, which runs one task at a time.

It ends when it loses its scheduler, or when a task takes too long (`remote_task.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

from kfp_tfjob.components.prepare_data.executors import dask_settings
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.storage.text import log_to

log = logging.getLogger(__spec__.name)  # also as a program

# The environment of a worker.
SCHEDULER, CERTIFICATE_FOLDER = "KFP_TFJOB_SCHEDULER", "KFP_TFJOB_CERTIFICATE"
SCHEDULER_SECONDS = "KFP_TFJOB_SCHEDULER_SECONDS"
NUMBER = "JOB_COMPLETION_INDEX"  # Kubernetes sets it

NO_SCHEDULER = 75  # exit code
_DEFAULT_SECONDS = 30.0  # to find the scheduler


def main() -> int:
    """Do tasks, one after the other, until the scheduler is gone; return the exit code."""
    end_with_parent()
    logger = logging.getLogger("kfp_tfjob")
    logger.handlers, logger.propagate = [log_to(sys.stdout)], False
    logger.setLevel(logging.INFO)
    dask_settings.use()
    return asyncio.run(_serve(os.environ[SCHEDULER]))


async def _serve(address: str) -> int:
    from distributed import Worker

    class Reasoned(Worker):
        """A worker that knows why it has closed."""

        why = ""

        async def close(self, *args: Any, reason: str = "worker-close", **more: Any) -> Any:
            self.why = self.why or reason
            return await super().close(*args, reason=reason, **more)

    certificate = Certificate.read(Path(os.environ[CERTIFICATE_FOLDER]))
    seconds = float(os.environ.get(SCHEDULER_SECONDS) or _DEFAULT_SECONDS)
    worker = Reasoned(
        address,
        nthreads=1,
        # A worker may come back before the scheduler has noticed that it was gone.
        name=f"{os.environ.get(NUMBER, '0')}/{uuid4().hex[:8]}",
        security=certificate.security(),
        memory_limit=0,
        death_timeout=seconds,
        dashboard_address=dask_settings.NOWHERE,
        dashboard=False,
    )
    try:
        await worker
    except (TimeoutError, OSError, RuntimeError) as error:
        log.info("cannot connect to %s for %g s: %s", address, seconds, _first(error))
        return NO_SCHEDULER
    await worker.finished()
    return 0 if worker.why == "scheduler-close" else 1


def _first(error: BaseException) -> str:
    """Return the first cause of an error."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return f"{type(error).__name__}: {error}"


def end_with_parent() -> None:
    """End this process as soon as the one that holds the other end of its stdin has ended."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
