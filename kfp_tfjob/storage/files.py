"""Writes files and folders that appear complete or not at all: it renames them when they are done.

Until then a temporary name marks unfinished content, so the uploader ignores it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from kfp_tfjob.supervisor.output_files import UNFINISHED

_LONGEST_NAME = 255  # bytes; the limit of file systems for a file name


def partial_of(path: Path) -> Path:
    """Return the temporary path of a file or folder, the same on every try."""
    name = os.fsencode(path.name)
    short = len(name) <= _LONGEST_NAME - len(b"..part")
    return path.with_name(f".{path.name if short else sha256(name).hexdigest()}.part")


@contextmanager
def written(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Rename a file or folder once the body has written it, or remove it if that fails.

    Args:
        path: The final name. A folder must not exist there; a file is replaced.
        partial: Where the body writes; by default `partial_of(path)`.

    Yields:
        The path to write to. It may be an unfinished file of an earlier try, but not a folder.
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
    """Write a file, or replace it.

    Raises:
        OSError: The file could not be written; an earlier file is unchanged.
    """
    partial = partial_of(path)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.replace(path)


def take_away(path: Path) -> None:
    """Remove a folder; its name never shows a partly removed folder."""
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
    """Remove what a killed process left unfinished in a folder."""
    for ending in UNFINISHED:
        for partial in folder.glob(f".*{ending}"):
            shutil.rmtree(partial, ignore_errors=True)
