"""Asks the Linux kernel to give orphans to the supervisor, and to leave none after it.

A process that a user's program leaves behind would hold GPU memory, and the next start would fail.
Called by `supervise.py` and `child.py`, and by programs that must not outlive their parent.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
from pathlib import Path
from typing import Callable

from .files import read_text

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # from <linux/prctl.h>; not in Python


def _prctl() -> Callable[..., int] | None:
    """Return prctl(2), or None if it is not available."""
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None


def adopt_orphans() -> None:
    """Make this process the parent of its orphans, even if it is not the container's first one."""
    prctl = _prctl()
    if prctl:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def child_setup() -> Callable[[], None]:
    """Return the function that a child calls before its command starts.

    The child gets its own process group, so signals of a terminal reach it only through the
    supervisor. The kernel kills the child if the supervisor is killed, so no training is left
    without a parent.
    """
    prctl = _prctl()

    def setup() -> None:
        os.setpgrp()
        if prctl:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return setup


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    prctl = _prctl()
    if prctl:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def children(parent: int = 0) -> list[int]:
    """Return the process ids of a process's children, adopted orphans included.

    Args:
        parent: The process; 0 for this one.
    """
    parent = parent or os.getpid()
    return [int(pid) for pid in read_text(Path(f"/proc/{parent}/task/{parent}/children")).split()]


def memory_left() -> float:
    """Return the bytes that this container can still allocate; infinite if unknown."""
    available = math.inf
    for line in read_text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024.0
    for folder, limit_name, usage_name, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file ",
        ),
    ):
        limit, current = (read_text(Path(folder, name)) for name in (limit_name, usage_name))
        if limit.isdecimal() and current.isdecimal():
            # The cache of files counts as used, but the kernel can drop it.
            stat = read_text(Path(folder, "memory.stat")).splitlines()
            droppable = sum(int(line.split()[1]) for line in stat if line.startswith(cache))
            available = min(available, int(limit) - int(current) + droppable)
    return available
