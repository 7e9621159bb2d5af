"""The files of a source of images, in about 100 bytes each: a million of them fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

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
            return [self[i] for i in range(*place.indices(len(self)))]
        i = range(len(self))[place]
        return next(self._files(i, i + 1))

    def __iter__(self) -> Iterator[SourceFile]:
        for start in range(0, len(self), _BATCH):
            yield from self._files(start, min(start + _BATCH, len(self)))

    def _files(self, start: int, end: int) -> Iterator[SourceFile]:
        (batch,) = self._batches
        columns = (column.to_pylist() for column in batch.slice(start, end - start).columns)
        for encoded, size, tag in zip(*columns, strict=True):
            name = encoded.decode(errors="surrogateescape")
            split = SPLITS.get(name.partition("/")[0].lower(), "") if self._has_splits else ""
            where: S3Address | str = f"{self._top}/{name}"
            if isinstance(self._top, S3Address):
                key = f"{self._top.key}/{name}" if self._top.key else name
                where = S3Address(self._top.bucket, key)
            yield SourceFile(name, size, where, tag, split)

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, _COLUMNS, strict=True)
            ]
            self._batches.append(pa.record_batch(arrays, _COLUMNS))
            self._rows = []
