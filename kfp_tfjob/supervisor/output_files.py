"""Lists the output files below a folder, and computes one hash for all of them.

Called by both sides of the flush barrier: the supervisor and the uploader.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Iterable, Iterator

from .unfinished_files import is_output


def digest(files: Iterable[tuple[str, int]]) -> tuple[int, str]:
    """Return the number of files, and the SHA-256 of their paths and sizes.

    Args:
        files: Relative path and size in bytes of each. The hash is over the lines `<size> <path>`
            sorted by path (docs/architecture.md, "The flush barrier").
    """
    checksum, count = hashlib.sha256(), 0
    for path, size in sorted(files):
        checksum.update(f"{size} {path}\n".encode(errors="surrogateescape"))
        count += 1
    return count, checksum.hexdigest()


def inventory(folder: Path) -> tuple[int, str]:
    """Return the number and hash of the output files in a folder, without links and vanished files.

    Raises:
        OSError: A folder cannot be read.
    """
    return digest(files(folder))


def files(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the relative path and the size of every output file.

    Raises:
        OSError: A folder cannot be read.
    """
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        if not prefix:
            raise
        return
    for entry in entries:
        if not is_output(entry.name):
            continue
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from files(folder / entry.name, path + "/")
        elif entry.is_file(follow_symlinks=False):
            try:
                yield path, entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:  # a temporary file, renamed since
                continue
