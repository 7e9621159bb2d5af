"""Files and folders that appear complete or not at all: written beside their name, then renamed.

Until then the name says that the content is not finished, and the uploader leaves it alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

UNFINISHED = (".tmp", ".part")  # as supervisor.inventory.counts says
_LONGEST_NAME = 255  # bytes of a file's name that file systems take


def partial_of(path: Path) -> Path:
    """Return where a file or folder is until it is complete, the same in every try."""
    name = os.fsencode(path.name)
    short = len(name) <= _LONGEST_NAME - len(b"..part")
    return path.with_name(f".{path.name if short else sha256(name).hexdigest()}.part")


@contextmanager
def written(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Give a file or folder its name when the body has written it, and remove it if that fails.

    Args:
        path: The name. A folder must not exist there; a file is replaced.
        partial: Where the body writes; by default `partial_of(path)`.

    Yields:
        Where to write. What an earlier try left of a folder is gone; open a file to overwrite it.
    """
    partial = partial or partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        discard(partial)
        raise


def write(path: Path, content: str | bytes) -> None:
    """Write a file, or replace it.

    Raises:
        OSError: It could not be written; an earlier file is as it was.
    """
    partial = partial_of(path)
    partial.write_bytes(content if isinstance(content, bytes) else content.encode())
    partial.replace(path)


def take_away(path: Path) -> None:
    """Remove a folder; half of it is never found under its name."""
    partial = partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def discard(partial: Path) -> None:
    """Remove an unfinished file or folder, if it is there."""
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what an end by force left unfinished in a folder."""
    for ending in UNFINISHED:
        for partial in folder.glob(f".*{ending}"):
            shutil.rmtree(partial, ignore_errors=True)
