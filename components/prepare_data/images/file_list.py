"""The files of a source of images, in about 100 bytes each: a million of them fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.source.files import SPLITS, SourceFile
from kfp_tfjob.storage.address import S3Address

_COLUMNS = pa.schema(
    # A name of a local file may have bytes that are not UTF-8. They sort like characters.
    [("name", pa.large_binary()), ("size", pa.int64()), ("tag", pa.large_string())]
)
_BATCH = 4096  # files that are objects of Python for a moment


class FileList(Sequence[SourceFile]):
    """Files below one place, which become `SourceFile`s when they are asked for.

    Args:
        top: The folder, as a path or an address.
    """

    def __init__(self, top: str | S3Address) -> None:
        self._top, self._has_splits = top, False
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[tuple[bytes, int, str]] = []  # that are in no batch yet

    def add(self, name: str, size: int, tag: str) -> None:
        """Add a file by its name below the folder; the arguments are those of `SourceFile`."""
        self._rows.append((name.encode(errors="surrogateescape"), size, tag))
        if len(self._rows) == _BATCH:
            self._flush()

    def names(self) -> Iterator[str]:
        """Yield the names of all files; before `close`, in the order in which they were added."""
        self._flush()
        for batch in self._batches:
            for name in batch.column(0).to_pylist():
                yield name.decode(errors="surrogateescape")

    def close(self, wanted: bytearray, has_splits: bool) -> None:
        """Keep some of the files, sorted by name.

        Args:
            wanted: For each file that was added, 1 if it is kept, and 0 if not.
            has_splits: Whether the first folder of a name is its split.
        """
        self._has_splits = has_splits
        self._flush()
        table = pa.Table.from_batches(self._batches, _COLUMNS)
        table = table.filter(pa.array(np.frombuffer(wanted, np.bool_))).sort_by("name")
        self._batches = table.combine_chunks().to_batches()

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches) + len(self._rows)

    @overload
    def __getitem__(self, place: int) -> SourceFile: ...
    @overload
    def __getitem__(self, place: slice) -> list[SourceFile]: ...
    def __getitem__(self, place: int | slice) -> SourceFile | list[SourceFile]:
        """Return the file at a place, or a list of files; only after `close`."""
        if isinstance(place, slice):
            return [self._file(i) for i in range(*place.indices(len(self)))]
        return self._file(range(len(self))[place])

    def __iter__(self) -> Iterator[SourceFile]:
        return map(self._file, range(len(self)))

    def _file(self, i: int) -> SourceFile:
        (batch,) = self._batches
        found: list[Any] = [column[i].as_py() for column in batch.columns]
        name, size, tag = found[0].decode(errors="surrogateescape"), found[1], found[2]
        split = SPLITS.get(name.partition("/")[0].lower(), "") if self._has_splits else ""
        if isinstance(self._top, S3Address):
            key = f"{self._top.key}/{name}" if self._top.key else name
            return SourceFile(name, size, S3Address(self._top.bucket, key), tag, split)
        return SourceFile(name, size, f"{self._top}/{name}", tag, split)

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, _COLUMNS, strict=True)
            ]
            self._batches.append(pa.record_batch(arrays, _COLUMNS))
            self._rows = []
