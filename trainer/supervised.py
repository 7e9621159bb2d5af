"""What the trainer tells its supervisor, and how it waits as a warm spare.

The supervisor reads lines from a pipe (`supervisor/child.py`): it has to know how long to wait for
the peers, and whether a trainer that died had made progress. Without a supervisor there is no pipe.
"""

from __future__ import annotations

import os
import sys

_PIPE = "SUPERVISOR_PIPE"


def waiting() -> None:
    """Say that this process waits for its peers from now on, and cannot be told anything."""
    _say("waiting")


def started() -> None:
    """Say that the peers are there, and that SIGTERM from now on means to save and stop."""
    _say("started")


def steps(done: int, last: int) -> None:
    """Say that `done` steps are done, and that those up to `last` follow."""
    _say(f"steps {done} {last}")


def is_spare() -> bool:
    """Tell whether this process has to wait until the trainer before it has died."""
    return os.environ.get("WAIT_FOR_GO") == "1"


def wait_for_go() -> int:
    """Return when this process is to take over; end it when it never will.

    Returns:
        The exit code of the process before it.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(0)
    return int(line.split()[1])


def _say(line: str) -> None:
    pipe = os.environ.get(_PIPE, "")
    if not pipe:
        return
    try:
        os.set_inheritable(int(pipe), False)  # what this process starts has nothing to say
        os.write(int(pipe), f"{line}\n".encode())
    except (OSError, ValueError):
        del os.environ[_PIPE]
