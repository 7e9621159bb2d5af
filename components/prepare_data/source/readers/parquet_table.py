"""Reads a Parquet file as arrow columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features.cells import textual
from kfp_tfjob.options.data import DataOptions

from ...faults import BlockFaults
from ..column_names import MOST_COLUMNS, Columns, too_many_columns
from .arrow_table import Chunk, Reader, translate_read_errors
from .byte_range import Span

_EXPECTED = "a Parquet file that can be read to its end"
_READ_BYTES = 1 << 20  # of a column at a time; without it a whole column of a row group is read
_READING: dict[str, Any] = {
    "pre_buffer": False,
    "page_checksum_verification": True,  # of files that have them
    "coerce_int96_timestamp_unit": "us",  # nanoseconds end in 2262
}
# Unpacked: a million rows of long strings are gigabytes.
_CHUNK_BYTES, _DICTIONARY_BYTES = 32 << 20, 64 << 20


class ParquetTable(Reader):
    """A Parquet file, or some of its row groups."""

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int, span: Span | None
    ) -> None:
        self._name, self._stream, self._span = name, stream, span
        with translate_read_errors(name, _EXPECTED):
            file = pq.ParquetFile(stream, **_READING)
            self._metadata = file.metadata
            if self._metadata.num_columns > MOST_COLUMNS:
                raise DataError(too_many_columns(name, self._metadata.num_columns))
            self.schema = file.schema_arrow

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file begins as Parquet does."""
        return head.startswith(b"PAR1")

    @staticmethod
    def units(stream: IO[bytes], name: str) -> list[int]:
        """Return the stored bytes of each row group."""
        with translate_read_errors(name, _EXPECTED):
            metadata = pq.read_metadata(stream)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [
            sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            for group in groups
        ]

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns batch by batch."""
        names = list(columns.all)
        span = self._span or Span(0, self._metadata.num_row_groups)
        row = 1 + sum(self._metadata.row_group(i).num_rows for i in range(span.start))
        numbers = list(range(span.start, span.end))
        # A string that occurs a million times is in memory once.
        repeated = {name for name in names if textual(self.schema.field(name).type)}
        for group in map(self._metadata.row_group, numbers):
            rows = min(rows, max(1, _CHUNK_BYTES * group.num_rows // max(1, group.total_byte_size)))
            for column in map(group.column, range(group.num_columns)):
                if column.total_uncompressed_size > _DICTIONARY_BYTES:
                    repeated.discard(column.path_in_schema)
        with translate_read_errors(self._name, _EXPECTED):
            file = pq.ParquetFile(
                self._stream,
                metadata=self._metadata,
                read_dictionary=list(repeated),
                buffer_size=_READ_BYTES,
                **_READING,
            )
            batches = file.iter_batches(rows, numbers, names, use_threads=False)
        while True:
            with translate_read_errors(self._name, _EXPECTED):
                batch = next(batches, None)
                _check_indices(batch.columns if batch else ())
            if batch is None:
                return
            faults = BlockFaults(self._name, np.arange(row, row + batch.num_rows))
            row += batch.num_rows
            yield Chunk({name: batch.column(name) for name in names}, faults, batch.nbytes)


def _check_indices(columns: Iterable[pa.Array]) -> None:
    """Check the indices of dictionaries, which Arrow does not check when it reads them."""
    for column in columns:
        if isinstance(column, pa.DictionaryArray):
            ends, size = pc.min_max(column.indices).as_py(), len(column.dictionary)
            if ends["max"] is not None and not 0 <= ends["min"] <= ends["max"] < size:
                raise pa.ArrowIndexError(f"index {ends['max']} of {size} values")
