"""Keeps NCCL's log of this process in a file, and reports how the GPUs exchange gradients.

At the level that shows the transports, NCCL writes hundreds of lines at each start, so they stay
out of this program's log. Its warnings explain failures, so they are logged when training fails or,
after a crash, when the next process starts. Called by `__main__.py` and `loop.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

from kfp_tfjob.jobs.nccl_log import Transports

log = logging.getLogger(__name__)
_LEVEL, _FILE = "NCCL_DEBUG", "NCCL_DEBUG_FILE"
_WARNING = " NCCL WARN "
_MOST_WARNINGS = 10  # each rank repeats the warnings of the others' failures


def prepare(
    job_dir: Path, gpus: int | None, environment: MutableMapping[str, str] | None = None
) -> None:
    """Make NCCL log to a file in JOB_DIR; call this before TensorFlow is imported.

    A job that sets NCCL_DEBUG or NCCL_DEBUG_FILE itself keeps its settings.

    Args:
        job_dir: JOB_DIR, which may have the file of an earlier process of this pod.
        gpus: Number of GPUs of this replica; None if unknown.
        environment: The variables that NCCL reads; those of this process by default.
    """
    environment = os.environ if environment is None else environment
    for path in job_dir.glob("nccl.*.log"):
        _log_warnings(path)
        path.unlink(missing_ok=True)
    if gpus != 0 and not {_LEVEL, _FILE} & environment.keys():
        environment[_LEVEL] = "INFO"
        # NCCL replaces %p by its process id, and %% by one %.
        environment[_FILE] = f"{str(job_dir).replace('%', '%%')}/nccl.%p.log"


def report(job_dir: Path) -> None:
    """Log the transports of this process, and a warning if nodes use TCP sockets."""
    transports = Transports.read(_lines(_path(job_dir)))
    if not transports:
        return
    log.info("%s", transports)
    if problem := transports.problem:
        log.warning("%s", problem)


def log_warnings(job_dir: Path) -> None:
    """Log NCCL's last warnings, for a training that failed."""
    _log_warnings(_path(job_dir))


def _path(job_dir: Path) -> Path:
    return job_dir / f"nccl.{os.getpid()}.log"


def _log_warnings(path: Path) -> None:
    warnings = [line for line in _lines(path) if _WARNING in line]
    for line in warnings[-_MOST_WARNINGS:]:
        log.warning("%s", line)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:  # without a second GPU, NCCL writes none
        return []
