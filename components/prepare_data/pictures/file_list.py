"""The files of a source of pictures, in about 60 bytes each: a million of them fit in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from kfp_tfjob.components.prepare_data.files import SPLITS, SourceFile, tag_of
from kfp_tfjob.storage.address import S3Address


class FileList(Sequence[SourceFile]):
    """Files below one place, which become `SourceFile`s when they are asked for.

    Args:
        top: The folder, as a path or an address.
    """

    def __init__(self, top: str | S3Address) -> None:
        self._top = top
        self._names: list[str] = []
        self._text, self._ends = bytearray(), array("q")
        self._sizes = array("q")
        # Of a local file, what a change would change; of an object, its entity tag.
        self._inodes, self._times = array("Q"), array("q")
        self._tags: list[str] = []
        self._tag_text, self._tag_ends = bytearray(), array("q")
        self._has_splits = False

    def add_local(self, name: str, status: os.stat_result) -> None:
        """Add a file of this machine, by its name below the folder."""
        self._names.append(name)
        self._sizes.append(status.st_size)
        self._inodes.append(status.st_ino)
        self._times.append(status.st_mtime_ns)

    def add_object(self, name: str, size: int, tag: str) -> None:
        """Add an object, by its key below the address."""
        self._names.append(name)
        self._sizes.append(size)
        self._tags.append(tag)

    def unsorted(self) -> list[str]:
        """Return the names that were added, before `close`."""
        return self._names

    def close(self, wanted: Sequence[bool], has_splits: bool) -> None:
        """Keep some of the files, sorted by name.

        Args:
            wanted: For each file that was added, whether it is kept.
            has_splits: Whether the first folder of a name is its split.
        """
        order = sorted((i for i, keep in enumerate(wanted) if keep), key=self._names.__getitem__)
        self._has_splits = has_splits
        self._text, self._ends = _packed(self._names, order)
        self._sizes = array("q", (self._sizes[i] for i in order))
        if self._tags:
            self._tag_text, self._tag_ends = _packed(self._tags, order)
        else:
            self._inodes = array("Q", (self._inodes[i] for i in order))
            self._times = array("q", (self._times[i] for i in order))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> SourceFile: ...
    @overload
    def __getitem__(self, place: slice) -> list[SourceFile]: ...
    def __getitem__(self, place: int | slice) -> SourceFile | list[SourceFile]:
        """Return the file at a place, or a list of files."""
        if isinstance(place, slice):
            return [self._file(i) for i in range(*place.indices(len(self)))]
        return self._file(range(len(self))[place])

    def __iter__(self) -> Iterator[SourceFile]:
        return map(self._file, range(len(self)))

    def _file(self, i: int) -> SourceFile:
        name, size = _piece(self._text, self._ends, i), self._sizes[i]
        split = SPLITS.get(name.partition("/")[0].lower(), "") if self._has_splits else ""
        if isinstance(self._top, S3Address):
            key = f"{self._top.key}/{name}" if self._top.key else name
            place = S3Address(self._top.bucket, key)
            return SourceFile(name, size, place, _piece(self._tag_text, self._tag_ends, i), split)
        tag = tag_of(self._inodes[i], self._times[i], size)
        return SourceFile(name, size, f"{self._top}/{name}", tag, split)


def _packed(texts: list[str], order: Sequence[int]) -> tuple[bytearray, array[int]]:
    """Return texts as one, in an order, and where each ends; empty the list, to save memory."""
    ends, packed = array("q"), bytearray()
    for i in order:
        packed += texts[i].encode()
        ends.append(len(packed))
    texts.clear()
    return packed, ends


def _piece(text: bytearray, ends: array[int], i: int) -> str:
    return text[ends[i - 1] if i else 0 : ends[i]].decode()
