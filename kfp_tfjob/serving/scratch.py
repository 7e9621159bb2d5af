"""A folder on the disk for a version while it is loaded.

A server that is killed cannot remove its folder, and in a pod the volume outlives the container. So
each folder has a lock, which ends with its process, and the next process removes the folders
whose lock is free.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX, _LOCK = "kfp-tfjob-serve-", "lock"


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty folder, and remove it at the end."""
    base = Path(tempfile.gettempdir())
    _remove_left(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        with open(folder / "new", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "new").rename(folder / _LOCK)  # no other process sees it before it is locked
            content = folder / "content"
            content.mkdir()
            yield content
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(base: Path) -> None:
    """Remove the folders of servers that were killed."""
    for folder in base.glob(f"{_PREFIX}*"):
        try:
            with open(folder / _LOCK, "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is in use, is being created, or belongs to another user
            continue
        shutil.rmtree(folder, ignore_errors=True)
