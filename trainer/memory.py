"""Keeps freed buffers of one step for the next."""

from __future__ import annotations

import ctypes

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD, _SPARE_MEMORY = 32 << 20, 256 << 20  # bytes


def keep_freed() -> None:
    """Keep memory that was freed instead of giving it back to the kernel.

    Batches and the messages of a sum over replicas are so large that the C library maps them again
    every time, which costs hundreds of page faults in a step, and more time than sending them does.
    TensorFlow changes these settings when it makes an iterator, so this has to come later.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not the C library of GNU
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, _SPARE_MEMORY)
