"""Reads an Arrow file, an Arrow stream or a Feather file as arrow columns, from start to end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Content,
    FileFormat,
    Reader,
    undamaged,
)
from kfp_tfjob.storage.errors import DataError, Problem

_FILE_MAGIC, _STREAM_MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
_EXPECTED = "an Arrow or Feather file that can be read to its end"
_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_FILE_HEAD = 8  # bytes before the stream that a file contains
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_LARGEST_BATCH = 256 << 20  # bytes of a record batch, which is in memory as a whole


class IpcTable(Reader):
    """An Arrow or Feather file.

    A file of Arrow is a stream with an index at its end, which is not needed to read all of it.

    Args:
        stream: Its bytes, seekable.
        name: Name of the file, for messages.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name
        with undamaged(name, _EXPECTED):
            self.schema = self._open().schema

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` rows at a time."""
        wanted = columns.all
        with undamaged(self._name, _EXPECTED):
            reader = self._open([self.schema.get_field_index(name) for name in wanted])
        row = 1
        while True:
            try:
                with undamaged(self._name, _EXPECTED):
                    batch = reader.read_next_batch()
                    for column in batch.columns:
                        _validate(column)
            except StopIteration:
                if self._bytes.last != _END:  # Arrow takes the end of the bytes for it
                    raise _damaged(self._name) from None
                return
            self._check(batch.nbytes)
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                lines = np.arange(row + start, row + start + part.num_rows)
                found = {name: part.column(name) for name in wanted}
                yield Chunk(found, BlockFaults(self._name, lines), part.nbytes)
            row += batch.num_rows

    def _open(self, columns: list[int] | None = None) -> pa.ipc.RecordBatchStreamReader:
        self._stream.seek(0)
        head = self._stream.read(_FILE_HEAD)
        if not head.startswith(_FILE_MAGIC):
            self._stream.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=sorted(columns or []), use_threads=False)
        self._bytes = _Bytes(self._stream, self._check)
        return pa.ipc.open_stream(pa.PythonFile(self._bytes, "r"), options=options)

    def _check(self, size: int) -> None:
        """Refuse what may not fit in memory."""
        if size > _LARGEST_BATCH:
            raise DataError(
                Problem(
                    f"a record batch of {self._name} has too many bytes",
                    received=f"{size / (1 << 20):,.0f} MiB",
                    expected=f"at most {_LARGEST_BATCH >> 20} MiB",
                    fix="write the file with smaller record batches, or as Parquet",
                )
            )


class _Bytes(io.RawIOBase):
    """A stream that Arrow reads message by message.

    Args:
        stream: The bytes.
        check: Gets the size of each message before it is read.

    Attributes:
        last: The last bytes that were read.
    """

    def __init__(self, stream: IO[bytes], check: Callable[[int], None]) -> None:
        self._stream, self._check, self.last = stream, check, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self._check(size)
        data = self._stream.read(size)
        self.last = (self.last + data[-len(_END) :])[-len(_END) :]
        return data


def _damaged(name: str) -> DataError:
    received = "the stream does not end where it should"
    problem = Problem(
        f"{name} is damaged", received=received, expected=_EXPECTED, fix="write the file again"
    )
    return DataError(problem)


def _validate(column: pa.Array) -> None:
    """Refuse a column that points outside its buffers; Arrow has no checksums and checks nothing.

    A text that is not UTF-8 passes: it is a fault of its row.

    Raises:
        pa.ArrowInvalid: It does.
    """
    if isinstance(column, pa.DictionaryArray):
        _validate(column.dictionary)
        _validate(column.indices)
        most = pc.max(column.indices).as_py()
        least = pc.min(column.indices).as_py()
        if most is not None and not 0 <= least <= most < len(column.dictionary):
            raise pa.ArrowInvalid(f"indices from {least} to {most} into {len(column.dictionary)}")
        return
    as_bytes = _AS_BYTES.get(column.type)
    (column.view(as_bytes) if as_bytes else column).validate(full=True)


FORMAT = FileFormat(
    lambda head: head.startswith((_FILE_MAGIC, _STREAM_MAGIC)),
    lambda stream, name, options, block, span: IpcTable(stream, name),
    Content.STORED,
)
