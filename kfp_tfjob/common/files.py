"""Files and folders that appear complete or not at all: each is renamed once it is written.

A process can be killed at any time, and a later one, or the uploader, would take half a file for a
whole one. Until the rename, a temporary name marks the content as unfinished, and the uploader
ignores it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from kfp_tfjob.supervisor.unfinished_files import UNFINISHED

_LONGEST_NAME = 255  # bytes; the limit of file systems for a file name


def partial_of(path: Path) -> Path:
    """Return the temporary path of a file or folder.

    The same path has the same one in each process, so a retry replaces what an earlier try left.
    """
    name = os.fsencode(path.name)
    short = len(name) <= _LONGEST_NAME - len(b"..part")
    return path.with_name(f".{path.name if short else sha256(name).hexdigest()}.part")


@contextmanager
def atomic_write(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Rename a file or folder once the body has written it, or remove it if that fails.

    Args:
        path: The final name. A folder must not exist there; a file is replaced.
        partial: The path to write to; by default `partial_of(path)`.

    Yields:
        The path to write to. An unfinished file of an earlier try may be there, but no folder.
    """
    partial = partial or partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        discard(partial)
        raise


def write(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file, or replace an existing one.

    Raises:
        OSError: The file could not be written; an existing file is unchanged.
    """
    partial = partial_of(path)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.replace(path)


def take_away(path: Path) -> None:
    """Remove a folder; it is renamed first, so nobody sees it partly removed."""
    partial = partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def discard(partial: Path) -> None:
    """Remove an unfinished file or folder if one exists."""
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove unfinished folders that a killed process left in `folder`."""
    for ending in UNFINISHED:
        for partial in folder.glob(f".*{ending}"):
            shutil.rmtree(partial, ignore_errors=True)
