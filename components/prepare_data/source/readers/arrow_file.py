"""Reads Arrow files, which pandas' `to_feather` also writes, and Arrow streams as columns.

A file does not say how many rows its record batches have, so it is not split into parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
from pyarrow import ipc

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.options.data import DataOptions

from ..column_names import MOST_COLUMNS, Columns, too_many_columns
from .arrow_table import Chunk, Reader, chunks_of, translate_read_errors
from .byte_range import Span

_EXPECTED = "an Arrow file that can be read to its end"
_FILE, _STREAM = b"ARROW1", b"\xff\xff\xff\xff"


class ArrowFile(Reader):
    """An Arrow file, some of its record batches, or an Arrow stream."""

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int, span: Span | None
    ) -> None:
        self._name = name
        with translate_read_errors(name, _EXPECTED):
            head = stream.peek(len(_FILE))  # pyright: ignore[reportAttributeAccessIssue]
            is_file = head.startswith(_FILE)
            self._file = ipc.open_file(stream) if is_file else None
            self._stream: Any = None if is_file else ipc.open_stream(stream)
            self.schema = (self._file or self._stream).schema
        self._held: pa.RecordBatch | None = None  # the first one of a stream, which is read twice
        if len(self.schema) > MOST_COLUMNS:
            raise DataError(too_many_columns(name, len(self.schema)))

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file begins as an Arrow file or stream does."""
        return head.startswith((_FILE, _STREAM))

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` rows at a time."""
        row = 1
        for batch in self._record_batches():
            with translate_read_errors(self._name, _EXPECTED):
                batch = batch.select(columns.all)
                batch.validate(full=True)  # Arrow trusts the offsets and indices in a file
            yield from chunks_of(batch, columns.all, rows, self._name, row)
            row += batch.num_rows

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all record batches; of a stream, also after an earlier call that took one."""
        if self._file:
            for number in range(self._file.num_record_batches):
                with translate_read_errors(self._name, _EXPECTED):
                    batch = self._file.get_batch(number)
                yield batch
            return
        batch = self._held
        while True:
            if batch is not None:
                yield batch
            with translate_read_errors(self._name, _EXPECTED):
                batch = next(self._stream, None)
            if batch is None:
                return
            self._held = self._held or batch
