"""Reports the trainer's state to its supervisor.

The supervisor reads lines from a pipe (`kfp_tfjob/supervisor/child.py`). From these, it decides how
long to wait for the peers, and whether a dead trainer had made progress. Without a supervisor there
is no pipe. Called by `__main__.py`, `loop.py` and `replicas.py`.
"""

from __future__ import annotations

import os

_PIPE = "SUPERVISOR_PIPE"


def waiting() -> None:
    """Report that this process now waits for its peers and cannot handle signals."""
    _report("waiting")


def started() -> None:
    """Report that all peers have connected, and that SIGTERM makes this process save and stop."""
    _report("started")


def steps(done: int, last: int) -> None:
    """Report that `done` steps are done, and that the steps up to `last` follow."""
    _report(f"steps {done} {last}")


def _report(line: str) -> None:
    pipe = os.environ.get(_PIPE, "")
    if not pipe:
        return
    try:
        os.set_inheritable(int(pipe), False)  # child processes must not write to it
        os.write(int(pipe), f"{line}\n".encode())
    except (OSError, ValueError):  # the supervisor is gone; training goes on without it
        del os.environ[_PIPE]
