"""Scans a folder for the files to store.

A scan reads names, sizes and times, not contents. It is compared with the previous scan, so the
mirror needs no notifications, which may be lost and which not all file systems send. Called by
`watch.py`, `mirror.py` and `folder.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_tfjob.supervisor.output_files import digest
from kfp_tfjob.supervisor.unfinished_files import is_output


@dataclass(frozen=True, order=True)
class LocalFile:
    """A regular file as one scan saw it; equal values mean the same content.

    Attributes:
        path: The path relative to the folder, with `/` between its parts.
        size: Bytes.
        mtime_ns: Time of the last change in nanoseconds.
        inode: Inode number; a replacement by rename changes it.
        ctime_ns: Time of the last change of the inode; programs cannot set it back.
    """

    path: str
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


@dataclass(frozen=True)
class Scan:
    """Everything below a folder at one moment.

    Attributes:
        files: The files to store, by path.
        skipped: The types of entries that are neither a file nor a directory, by path.
        errors: Directories that could not be read; their contents are unknown.
    """

    files: Mapping[str, LocalFile] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


def scan(folder: Path, includes: Callable[[str], bool] = is_output) -> Scan:
    """Return all entries below a folder; a symbolic link is never followed.

    A file that vanishes during the scan is omitted, but a folder that cannot be read is an error.
    Otherwise, the mirror would delete the objects of files that merely cannot be read.

    Args:
        folder: The folder.
        includes: Selects files and directories by name; the default skips hidden and partial ones.
    """
    files: dict[str, LocalFile] = {}
    skipped: dict[str, str] = {}
    errors: list[str] = []
    directories = [""]
    while directories:
        directory = directories.pop()
        try:
            with os.scandir(folder / directory) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if not includes(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        try:
                            stat = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # only this file is gone
                        files[path] = LocalFile(
                            path, stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns
                        )
                    else:
                        skipped[path] = "link" if entry.is_symlink() else "special file"
        except FileNotFoundError as error:
            if not directory:
                errors.append(str(error))
        except OSError as error:
            errors.append(str(error))
    return Scan(files, skipped, tuple(errors))


def inventory(files: Iterable[LocalFile]) -> tuple[int, str]:
    """Return the number of files and the SHA-256 of their paths and sizes."""
    return digest((file.path, file.size) for file in files)
