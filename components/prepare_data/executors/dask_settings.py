"""The settings of Dask: what is left of it are futures, and no open port without a certificate."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from typing import Any

LOST_SECONDS = 120  # without a heartbeat of a worker; its tasks then run elsewhere
MOST_LOST = 5  # workers that a task may lose, or exceed its deadline on, before the step fails
NOWHERE = "127.0.0.1:0"  # where Dask's HTTP server listens, which cannot be switched off

_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.allowed-failures": MOST_LOST,
    "distributed.scheduler.worker-ttl": f"{LOST_SECONDS}s",
    # A worker gets the next task when it has done one, so nothing is stolen and a lost worker costs
    # one task.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    # The HTTP servers have no page and no API.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.scheduler.preload": [],
    "distributed.worker.preload": [],
    # Results are small. The container limits the memory: Dask would count mapped files as memory.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.comm.require-encryption": True,
    "distributed.comm.tls.min-version": 1.3,
    "distributed.comm.timeouts.connect": "30s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.admin.log-length": 100,
}


def use() -> None:
    """Import Dask and set it up for this process; its own files and variables do not count."""
    if "DASK_CONFIG" not in os.environ:
        # Otherwise, the import writes a file into the home folder of the user.
        os.environ["DASK_CONFIG"] = os.path.join(tempfile.gettempdir(), "kfp-tfjob-no-dask-config")
    import dask
    import distributed  # noqa: F401

    dask.config.set(_SETTINGS)
    # What matters is logged by this project; Dask reports each lost connection, also at the end.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="distributed")
