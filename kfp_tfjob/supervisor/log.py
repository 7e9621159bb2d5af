"""Writes the supervisor's log: one line for each change of state."""

from __future__ import annotations

import os
import time


def log(message: str) -> None:
    """Write one line to the container's log; if that fails, training continues."""
    line = time.strftime("%H:%M:%S") + " supervisor: " + message + "\n"
    try:
        os.write(1, line.encode(errors="backslashreplace"))
    except OSError:
        return
