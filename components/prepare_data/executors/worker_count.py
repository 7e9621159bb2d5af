"""Decides how many tasks run at a time: as many as pod.prepare.cpu requests, if there is enough.

A worker beyond the cores that this container may use only slows the others down, and one without
memory ends the step. Called by prepare_data's engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kfp_tfjob.common.formatting import counted, sized
from kfp_tfjob.supervisor.cores import available_cores
from kfp_tfjob.supervisor.kernel import memory_left

_MOST_SHARED = 4  # workers in a pod without a CPU limit, which shares its node's cores
WORKER_BYTES = 400 << 20  # of one worker, with what it needs for a moment


@dataclass(frozen=True)
class WorkerCount:
    """How many tasks run at a time.

    Attributes:
        workers: 1 or more.
        limit: What allows no more.
    """

    workers: int
    limit: str


def worker_count(parts: int, cores: int = 0) -> WorkerCount:
    """Return how many workers there are cores, memory and parts of the source for.

    Args:
        parts: The parts of the source.
        cores: How many the pod requests; 0 if that is unknown. It may have a higher limit, and a
            local run has the cores of its machine.
    """
    allowed, left = available_cores(shared=cores or _MOST_SHARED), memory_left()
    limits = [
        (allowed, f"this container may use {counted(allowed, 'core')}"),
        (parts, f"the source has {counted(parts, 'part')}"),
    ]
    if cores:  # first, because a container without a limit may use as many
        limits.insert(0, (cores, f"pod.prepare.cpu requests {counted(cores, 'core')}"))
    if left < math.inf:
        memory = (
            f"{sized(int(left))} of memory are left, and each worker gets {sized(WORKER_BYTES)}"
        )
        limits.append((int(left // WORKER_BYTES), memory))
    workers, limit = min(limits, key=lambda pair: pair[0])
    return WorkerCount(max(1, workers), limit)
