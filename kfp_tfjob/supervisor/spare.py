"""Starts the warm spare: a second process of the command that waits to take over."""

from __future__ import annotations

from typing import Mapping, Sequence

from kfp_tfjob.supervisor.child import Child
from kfp_tfjob.supervisor.kernel import memory_left
from kfp_tfjob.supervisor.log import log

_LEAST_MEMORY = 1 << 30  # bytes; TensorFlow takes 0.6 GB


def start_spare(command: Sequence[str], environment: Mapping[str, str]) -> Child | None:
    """Start a spare; if that is not possible, log the reason and return None."""
    left = memory_left()
    if left < _LEAST_MEMORY:
        log(f"no warm spare: only {left / 2**20:.0f} MiB of memory are left")
        return None
    try:
        return Child(command, environment, spare=True)
    except OSError as error:
        log(f"no warm spare: {error}")
        return None
