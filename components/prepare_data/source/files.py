"""A source's files, opened as they are stored; reading one fails if it changes meanwhile.

Called wherever prepare_data reads its source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import IO, Any

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.stream import ObjectStream, Starts

from ..faults import Faults, ListRow
from .readers.own_reader import OwnReader

# The folders that mean a split, by name; the same as in Hugging Face's `datasets`, and `holdout`.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "holdout"), "test"),
}
_starts = Starts()
LARGEST_CONTENT = 64 << 20  # bytes of a file that is in memory as a whole, several times
_REQUESTS = 16  # objects that are fetched at the same time
# Properties of a source that a copy for another process has in place of the files.
_TOTALS = ("first", "size", "folder_splits", "splits_by_folder")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the source.

    Attributes:
        name: Its path relative to data_uri, with `/`; for a single file, its own name.
        size: Its size in bytes.
        location: Its address or path.
        tag: The entity tag in S3; for a local file, inode, time and size, to detect a change.
        split: `train`, `validation` or `test` if a folder in SPLITS says so, or empty.
        label: The class of an image; empty for a table.
        row: The row of a table that names the image, or None.
    """

    name: str
    size: int
    location: S3Address | str
    tag: str
    split: str = ""
    label: str = ""
    row: ListRow | None = None


@dataclass(frozen=True)
class ImageClasses:
    """The classes of an image source, which folders or the rows of a table name.

    Attributes:
        classes: The names of the classes, sorted.
        tables: The tables that list the images; empty if folders are the classes.
        faults: The rows of these tables that name no image; None if folders are the classes.
    """

    classes: tuple[str, ...]
    tables: Sequence[SourceFile] = ()
    faults: Faults | None = None

    @property
    def codes(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def notes(self) -> list[str]:
        """Sentences about files that are not read."""
        return []


@dataclass(frozen=True)
class Folders(ImageClasses):
    """The classes and splits that the folders of an image source name.

    Attributes:
        depth: The number of folders above a class's folder: 1 where the top folders name splits.
        stray: Images outside a class's folder.
        unread: Other files outside a class's folder, which are not read.
    """

    depth: int = 0
    stray: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences about files that are not read."""
        subject = "files outside the classes' folders, which are not read"
        return [f"{subject}: {listed(self.unread, 10)}"] if self.unread else []


@dataclass(frozen=True)
class Source:
    """All files of `data_uri`, sorted by name.

    Attributes:
        uri: As given.
        files: At least one.
        store: The store to read objects from; a copy for another process lacks it, and the files.
        reader: The user's own reader of the files, or None.
        pictures: The classes of images; None for tables.
        unread: Other files in the folders of tables, which are not read because of their endings.
    """

    uri: str
    files: Sequence[SourceFile]
    store: Store
    reader: OwnReader | None = None
    pictures: ImageClasses | None = None
    unread: Sequence[SourceFile] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connections of this process and the files out of a copy.

        There may be millions of files; a task gets its own. The copy has what they are together.
        """
        totals = {name: getattr(self, name) for name in _TOTALS}
        pictures = self.pictures and replace(self.pictures, tables=(), faults=None)
        rest = {"store": None, "files": (), "unread": (), "pictures": pictures}
        return vars(self) | totals | rest

    @cached_property
    def first(self) -> SourceFile:
        """The first file."""
        return self.files[0]

    @cached_property
    def folder_splits(self) -> frozenset[str]:
        """The splits that folders name."""
        return frozenset(file.split for file in self.files if file.split)

    @cached_property
    def splits_by_folder(self) -> bool:
        """Whether files are in folders for train and for another split."""
        return {"train"} < self.folder_splits

    @cached_property
    def size(self) -> int:
        """The size of all files together in bytes, as stored."""
        return sum(file.size for file in self.files)

    def contents(self, files: Sequence[SourceFile]) -> Iterator[bytes | None]:
        """Yield the bytes of each file; None for one of more than LARGEST_CONTENT.

        Raises:
            DataError: One changed since it was listed, or cannot be read.
        """

        def content(file: SourceFile) -> bytes | None:
            if file.size > LARGEST_CONTENT:
                return None
            with self.raw(file) as stream:
                return stream.read()

        if not any(isinstance(file.location, S3Address) for file in files):
            yield from map(content, files)
            return
        # An answer takes milliseconds, however small the object.
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for at in range(0, len(files), 2 * _REQUESTS):
                yield from pool.map(content, files[at : at + 2 * _REQUESTS])

    @contextmanager
    def raw(self, file: SourceFile) -> Iterator[IO[bytes]]:
        """Open a file as stored, as a seekable stream.

        Raises:
            DataError: It changed since it was listed.
        """
        if isinstance(file.location, S3Address):
            location = (self.store, file.location, file.size, file.tag, _starts)
            with ObjectStream.buffered(*location) as stream:
                yield stream
            return
        try:
            stream = open(file.location, "rb")
        except OSError as error:
            raise _closed(file, error) from error
        with stream:
            _same(file, os.fstat(stream.fileno()))
            yield stream
            _same(file, os.fstat(stream.fileno()))


def _closed(file: SourceFile, error: OSError) -> DataError:
    return DataError(
        Problem(
            f"{file.location} cannot be opened",
            received=error.strerror,
            expected="a file that this process may read",
            fix="correct data_uri, or the file's permissions",
        )
    )


def mark(status: os.stat_result) -> str:
    """Return a string that changes when the file does: its inode, time and size."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _same(file: SourceFile, status: os.stat_result) -> None:
    if mark(status) != file.tag:
        raise DataError(
            Problem(
                f"{file.location} changed while it was being read",
                fix="wait until nothing writes to it, then start a new run",
            )
        )
