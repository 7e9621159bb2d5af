"""The files of a source of pictures, in about 60 bytes each: a million of them fit in memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.source.files import SPLITS, SourceFile, tag_of
from kfp_tfjob.storage.address import S3Address


class FileList(Sequence[SourceFile]):
    """Files below one place, which become `SourceFile`s when they are asked for.

    Args:
        top: The folder, as a path or an address.
    """

    def __init__(self, top: str | S3Address) -> None:
        self._top = top
        self._names = _Texts()
        self._sizes = array("q")
        # Of a local file, what a change would change; of an object, its entity tag.
        self._inodes, self._times = array("Q"), array("q")
        self._tags = _Texts()
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

    def names(self) -> Iterator[str]:
        """Yield the names of all files; before `close`, in the order in which they were added."""
        return iter(self._names)

    def close(self, wanted: bytearray, has_splits: bool) -> None:
        """Keep some of the files, sorted by name.

        Args:
            wanted: For each file that was added, 1 if it is kept, and 0 if not.
            has_splits: Whether the first folder of a name is its split.
        """
        # The order of UTF-8 is that of the characters.
        order = pc.sort_indices(self._names.arrow).to_numpy()
        order = order[np.frombuffer(bytes(wanted), np.bool_)[order]]
        self._has_splits = has_splits
        self._names = self._names.taken(order)
        self._sizes = _taken(self._sizes, order)
        if len(self._tags):
            self._tags = self._tags.taken(order)
        else:
            self._inodes, self._times = _taken(self._inodes, order), _taken(self._times, order)

    def __len__(self) -> int:
        return len(self._names)

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
        name, size = self._names[i], self._sizes[i]
        split = SPLITS.get(name.partition("/")[0].lower(), "") if self._has_splits else ""
        if isinstance(self._top, S3Address):
            key = f"{self._top.key}/{name}" if self._top.key else name
            place = S3Address(self._top.bucket, key)
            return SourceFile(name, size, place, self._tags[i], split)
        tag = tag_of(self._inodes[i], self._times[i], size)
        return SourceFile(name, size, f"{self._top}/{name}", tag, split)


class _Texts:
    """Texts in one piece of memory: as many objects would take four times as much."""

    def __init__(self) -> None:
        self._text: Any = bytearray()  # a memoryview, once it is complete
        self._ends: Any = array("q", [0])

    def append(self, text: str) -> None:
        # A name of a local file may have bytes that are no UTF-8.
        self._text += text.encode(errors="surrogateescape")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> str:
        return str(self._text[self._ends[i] : self._ends[i + 1]], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    @property
    def arrow(self) -> pa.LargeBinaryArray:
        """The texts as an array that uses the same memory."""
        buffers = [None, *map(pa.py_buffer, (self._ends, self._text))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    def taken(self, order: np.ndarray) -> _Texts:
        found, taken = _Texts(), self.arrow.take(pa.array(order))
        _, ends, text = taken.buffers()
        found._ends = memoryview(ends)[: 8 * (len(order) + 1)].cast("q")
        found._text = memoryview(text or b"")
        return found


def _taken(values: array[int], order: np.ndarray) -> array[int]:
    return array(values.typecode, np.frombuffer(values, values.typecode)[order].tobytes())
