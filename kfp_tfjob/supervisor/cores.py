"""Counts the cores that this container may use, which are often fewer than its node's.

Threads beyond the container's limit only slow each other down. Called by the trainer's
`replicas.py` and by prepare_data's `worker_count.py`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from .files import read_text

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Kubernetes sets it in every container.
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"


def available_cores(cgroups: Path = _CGROUPS, own: Path = _OWN, shared: int = 1) -> int:
    """Return the number of processes or threads that can compute at the same time.

    The container's limit decides (`resources.limits.cpu`, the CPU quota of its cgroup), and the
    cores on which the kernel lets it run. A container of Kubernetes without a limit shares its node
    in proportion to its request, which it cannot read, so it uses at most `shared` cores.

    Args:
        cgroups: Where the cgroups are mounted.
        own: The file that names the cgroups of this process.
        shared: The most cores to use on a node that is shared with other containers.

    Returns:
        1 or more; a limit of 2.5 cores gives 2.
    """
    limits = list(_limits(cgroups, own))
    if not limits and os.environ.get(_IN_KUBERNETES):
        return min(_allowed(), shared)
    return max(1, int(min([_allowed(), *limits])))


def _allowed() -> int:
    """Return the number of cores on which the kernel lets this process run."""
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _limits(cgroups: Path, own: Path) -> Iterator[float]:
    """Yield the limits, in cores, of the process's cgroup and of all cgroups that contain it."""
    for line in read_text(own).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:  # version 2
            root = cgroups
        elif "cpu" in controllers.split(","):  # version 1
            root = cgroups / "cpu"
        else:
            continue
        # In a cgroup namespace the path is `/`; without one, a container may see only the root.
        own_folder = root / path.strip("/")
        folders = [own_folder, *own_folder.parents] if path.startswith("/") else []
        visible = [folder for folder in folders if folder == root or root in folder.parents]
        for folder in visible or [root]:
            quota, period = _version_2(folder) if not controllers else _version_1(folder)
            if quota > 0 and period > 0:
                yield quota / period


def _version_2(folder: Path) -> list[float]:
    return _numbers(read_text(folder / "cpu.max"))


def _version_1(folder: Path) -> list[float]:
    text = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    return _numbers(" ".join(text))


def _numbers(text: str) -> list[float]:
    """Return quota and period in microseconds; zeros without a quota: `max`, -1, or no file."""
    try:
        quota, period = (float(part) for part in text.split())
    except ValueError:
        return [0.0, 0.0]
    return [quota, period]
