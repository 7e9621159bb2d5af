"""Reads an Arrow file, an Arrow stream or a Feather file as arrow columns, from start to end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk, undamaged
from kfp_tfjob.components.prepare_data.source.readers.file_format import Content, FileFormat
from kfp_tfjob.components.prepare_data.source.readers.streams import Pieces
from kfp_tfjob.storage.errors import DataError, Problem

_FILE_MAGIC, _STREAM_MAGIC = b"ARROW1", b"\xff\xff\xff\xff"
_EXPECTED = "an Arrow or Feather file that can be read to its end"
_AS_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
_FILE_HEAD = 8  # bytes before the stream that a file contains
_LONGEST_METADATA = 64 << 20  # bytes
_DICTIONARY, _RECORDS = 2, 3  # types of messages
_FEWER = "write the columns with many different texts without a dictionary"
# Of one record batch, unpacked, and of all dictionaries: they are in memory as a whole.
_LARGEST_BATCH = 256 << 20  # bytes


class IpcTable:
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

    def problems(self, columns: Columns) -> list[Problem]:
        """Return nothing: batches that are too large show only while they are read."""
        return []

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
                return
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
        return pa.ipc.open_stream(pa.PythonFile(Pieces(self._messages()), "r"), options=options)

    def _messages(self) -> Iterator[bytes]:
        """Yield the messages of the stream; refuse what may not fit in memory."""
        dictionaries: dict[int, int] = {}  # bytes by number; they stay in memory
        while True:
            head = self._stream.read(8)
            if len(head) < 8 or not head.startswith(_STREAM_MAGIC):
                raise ValueError("no message or end of the stream where one has to be")
            yield head
            length = struct.unpack("<i", head[4:])[0]
            if not length:
                return
            if not 0 < length <= _LONGEST_METADATA:
                raise ValueError(f"a message with {length} bytes of metadata")
            metadata = self._stream.read(length)
            yield metadata
            try:
                body = _Flat.root(metadata).number(3, "<q")
                self._check(body)
                data = self._stream.read(max(body, 0))
                size = _unpacked(metadata, data)
                self._check(size)
                if found := _dictionary(metadata):
                    number, is_delta = found
                    dictionaries[number] = size + is_delta * dictionaries.get(number, 0)
                    self._check(sum(dictionaries.values()), "dictionary data", _FEWER)
            except struct.error as error:
                raise ValueError(f"a message with wrong metadata ({error})") from error
            yield data

    def _check(
        self,
        size: int,
        what: str = "a record batch",
        fix: str = "write the file with smaller record batches",
    ) -> None:
        if size > _LARGEST_BATCH:
            raise DataError(
                Problem(
                    f"{what} of {self._name} has too many bytes",
                    received=f"{size / (1 << 20):,.0f} MiB unpacked",
                    expected=f"at most {_LARGEST_BATCH >> 20} MiB",
                    fix=f"{fix}, or as Parquet",
                )
            )


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


class _Flat:
    """A table of a FlatBuffer, the encoding of Arrow's metadata."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]

    @classmethod
    def root(cls, data: bytes) -> _Flat:
        return cls(data, struct.unpack_from("<I", data)[0])

    def place(self, field: int) -> int:
        """Return where a field is; 0 if it is absent."""
        size = struct.unpack_from("<H", self.data, self._fields)[0]
        if 4 + 2 * field >= size:
            return 0
        offset = struct.unpack_from("<H", self.data, self._fields + 4 + 2 * field)[0]
        return self.at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        place = self.place(field)
        return struct.unpack_from(kind, self.data, place)[0] if place else 0

    def pointed(self, field: int) -> int:
        """Return where the table or vector of a field is; 0 if it is absent."""
        place = self.place(field)
        return place + struct.unpack_from("<I", self.data, place)[0] if place else 0


def _dictionary(metadata: bytes) -> tuple[int, bool] | None:
    """Return the number of a dictionary, and whether the message adds to it; None for others."""
    message = _Flat.root(metadata)
    if message.number(1, "<B") != _DICTIONARY:
        return None
    batch = _Flat(metadata, message.pointed(2))
    return batch.number(0, "<q"), bool(batch.number(2, "<B"))


def _unpacked(metadata: bytes, body: bytes) -> int:
    """Return the unpacked size of the body of a message in bytes."""
    message = _Flat.root(metadata)
    kind, at = message.number(1, "<B"), message.pointed(2)
    if kind not in (_DICTIONARY, _RECORDS) or not at:
        return len(body)
    batch = _Flat(metadata, at)
    if kind == _DICTIONARY:
        batch = _Flat(metadata, batch.pointed(1))
    if not batch.place(3):  # not compressed
        return len(body)
    buffers, total = batch.pointed(2), 0
    for i in range(struct.unpack_from("<I", metadata, buffers)[0]):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * i)
        if length >= 8:
            # Each packed buffer begins with its unpacked size; -1 if it is not packed after all.
            size = struct.unpack_from("<q", body, max(offset, 0))[0]
            total += length if size < 0 else size
    return total


FORMAT = FileFormat(
    lambda head: head.startswith((_FILE_MAGIC, _STREAM_MAGIC)),
    lambda stream, name, options, block, span: IpcTable(stream, name),
    Content.STORED,
)
