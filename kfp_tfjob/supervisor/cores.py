"""Counts the cores that this container may use, not those of its node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

from kfp_tfjob.supervisor.files import read_text

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Kubernetes sets it in every container.
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"


def available_cores(cgroups: Path = _CGROUPS, own: Path = _OWN, shared: int = 1) -> int:
    """Return how many processes or threads can compute at the same time.

    The limit of the container decides (`resources.limits.cpu`, the CPU quota of its cgroup), and
    the cores that the kernel lets it use. A container of Kubernetes without a limit shares its node
    with others by what it requests, which it cannot see: it gets `shared`.

    Args:
        cgroups: Where the cgroups are mounted.
        own: Names the cgroups of this process.
        shared: The most cores to use beside others on a node.

    Returns:
        1 or more; a limit of 2.5 cores gives 2.
    """
    limits = list(_limits(cgroups, own))
    if not limits and os.environ.get(_IN_KUBERNETES):
        return min(_allowed(), shared)
    return max(1, int(min([_allowed(), *limits])))


def _allowed() -> int:
    """Return the number of cores on which the kernel lets this process run."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _limits(cgroups: Path, own: Path) -> Iterator[float]:
    """Yield the limits of the process's cgroup and of all above it, in cores."""
    for line in read_text(own).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:  # version 2
            root = cgroups
        elif "cpu" in controllers.split(","):  # version 1
            root = cgroups / "cpu"
        else:
            continue
        # In a cgroup namespace the path is `/`; without one, a container may see only the root.
        folder = root / path.strip("/")
        places = [folder, *folder.parents] if path.startswith("/") else []
        for place in [one for one in places if one == root or root in one.parents] or [root]:
            quota, period = _version_2(place) if not controllers else _version_1(place)
            if quota > 0 and period > 0:
                yield quota / period


def _version_2(folder: Path) -> list[float]:
    return _numbers(read_text(folder / "cpu.max"))


def _version_1(folder: Path) -> list[float]:
    text = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    return _numbers(" ".join(text))


def _numbers(text: str) -> list[float]:
    """Return quota and period; zeros for `max`, -1 or nothing, which mean that there is none."""
    try:
        quota, period = (float(part) for part in text.split())
    except ValueError:
        return [0.0, 0.0]
    return [quota, period]
