"""Keeps freed buffers of one step for the next."""

from __future__ import annotations

import ctypes

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD, _SPARE_MEMORY = 32 << 20, 256 << 20  # bytes


def keep_freed() -> None:
    """Keep freed memory instead of returning it to the kernel.

    Batches and the messages of a sum over replicas are large, so the C library maps them again
    every time. This costs hundreds of page faults per step, and more time than sending the data.
    TensorFlow changes these settings when it creates an iterator, so call this afterwards.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not the GNU C library
    mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, _SPARE_MEMORY)
