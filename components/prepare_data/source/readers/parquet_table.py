"""Reads a Parquet file as arrow columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.header import MOST_COLUMNS, Columns, too_many_columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Content,
    FileFormat,
    undamaged,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.features.cells import LONGEST, textual
from kfp_tfjob.storage.errors import DataError, Problem

_EXPECTED = "a Parquet file that can be read to its end"
_READ_BYTES = 1 << 20  # of a column at a time; without it a whole column of a row group is read
_READING: dict[str, Any] = {
    "pre_buffer": False,
    "page_checksum_verification": True,  # of files that have them
    "coerce_int96_timestamp_unit": "us",  # nanoseconds end in 2262
}
_LONGEST_FOOTER = 64 << 20  # bytes
# Of one column in one row group, unpacked. Pages cannot be larger, and the files of common writers
# stay far below.
_LARGEST_NUMBERS, _LARGEST_TEXTS = 256 << 20, 64 << 20  # bytes


class ParquetTable:
    """A Parquet file, or some of its row groups."""

    def __init__(self, stream: IO[bytes], name: str, span: Span | None = None) -> None:
        self._name, self._stream, self._span = name, stream, span
        _check_footer(stream, name)
        with undamaged(name, _EXPECTED):
            file = pq.ParquetFile(stream, **_READING)
            self._metadata = file.metadata
            if self._metadata.num_columns > MOST_COLUMNS:
                raise DataError(too_many_columns(name, self._metadata.num_columns))
            self.schema = file.schema_arrow
            # The column that each stored column belongs to: a nested one has several.
            self._leaves = [item.name for item in self.schema for _ in range(_leaves(item.type))]
            if len(self._leaves) != self._metadata.num_columns:
                raise ValueError("types that do not match the stored columns")

    @property
    def group_sizes(self) -> list[int]:
        """The stored bytes of each row group."""
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return [
            sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            for group in groups
        ]

    def _check_sizes(self, names: list[str]) -> None:
        """Refuse columns with too much data to unpack at once."""
        wanted = [(i, name) for i, name in enumerate(self._leaves) if name in set(names)]
        largest: dict[str, int] = {}
        for group in map(self._metadata.row_group, range(self._metadata.num_row_groups)):
            for i, name in wanted:
                size = group.column(i).total_uncompressed_size
                largest[name] = max(largest.get(name, 0), size)
        found = []
        for name, size in largest.items():
            text = textual(self.schema.field(name).type)
            limit = _LARGEST_TEXTS if text else _LARGEST_NUMBERS
            if size > limit:
                found.append(
                    Problem(
                        f"column {name!r} of {self._name} has too many bytes in one row group",
                        received=f"{size / (1 << 20):,.0f} MiB unpacked",
                        expected=f"at most {limit >> 20} MiB",
                        fix="write the file with smaller row groups"
                        + (f", and strings of at most {LONGEST:,} characters" * text),
                    )
                )
        DataError.raise_if(found)

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns batch by batch."""
        wanted = list(columns.all)
        self._check_sizes(wanted)
        groups = range(self._metadata.num_row_groups)
        row = 1
        if self._span:
            first, groups = groups[: self._span.start], groups[self._span.start : self._span.end]
            row += sum(self._metadata.row_group(i).num_rows for i in first)
        with undamaged(self._name, _EXPECTED):
            file = pq.ParquetFile(
                self._stream,
                metadata=self._metadata,
                # A text that occurs a million times is in memory once.
                read_dictionary=[name for name in wanted if textual(self.schema.field(name).type)],
                buffer_size=_READ_BYTES,
                **_READING,
            )
            batches = file.iter_batches(rows, list(groups), wanted, use_threads=False)
        while True:
            with undamaged(self._name, _EXPECTED):
                batch = next(batches, None)
            if batch is None:
                return
            faults = BlockFaults(self._name, np.arange(row, row + batch.num_rows))
            row += batch.num_rows
            yield Chunk({name: batch.column(name) for name in wanted}, faults, batch.nbytes)


def _leaves(kind: pa.DataType) -> int:
    """Return the number of stored columns of a type."""
    if pa.types.is_dictionary(kind):
        return 1
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1


def _check_footer(stream: IO[bytes], name: str) -> None:
    """Refuse an index that may not fit in memory."""
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(end - 8, 0))
    length = int.from_bytes(stream.read(8)[:4], "little")
    stream.seek(0)
    if _LONGEST_FOOTER < length < end:
        raise DataError(
            Problem(
                f"the index of {name} is too large",
                received=f"{length / (1 << 20):,.0f} MiB",
                expected=f"at most {_LONGEST_FOOTER >> 20} MiB",
                fix="write the file with larger row groups or fewer columns",
            )
        )


FORMAT = FileFormat(
    lambda head: head.startswith(b"PAR1"),
    lambda stream, name, options, block, span: ParquetTable(stream, name, span),
    Content.STORED,
    units=lambda stream, name: ParquetTable(stream, name).group_sizes,
)
