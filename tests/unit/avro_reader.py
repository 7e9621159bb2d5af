"""A reader of Avro, as someone adds a format: one module, and one line in FORMATS."""

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import IO, Any

import fastavro
import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Reader,
    translate_read_errors,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.options.data import DataOptions

_ERRORS = (ValueError, EOFError, IndexError, OSError, struct.error, zlib.error)
_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}


class AvroTable(Reader):
    """A file of Avro records."""

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int, span: Span | None
    ) -> None:
        self._name = name
        with translate_read_errors(name, errors=_ERRORS):
            self._records = fastavro.reader(stream)
            fields: Any = self._records.writer_schema
            self.schema = pa.schema([(item["name"], _type(item)) for item in fields["fields"]])

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Tell whether a file begins as Avro does."""
        return head.startswith(b"Obj\x01")

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` records at a time."""
        row = 1
        while True:
            with translate_read_errors(self._name, errors=_ERRORS):
                records: list[Any] = list(islice(self._records, rows))
            if not records:
                return
            found = {
                name: pa.array([record[name] for record in records], self.schema.field(name).type)
                for name in columns.all
            }
            lines = np.arange(row, row + len(records))
            yield Chunk(
                found, BlockFaults(self._name, lines), sum(item.nbytes for item in found.values())
            )
            row += len(records)


def _type(field: Any) -> pa.DataType:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    (kind,) = [kind for kind in kinds if kind != "null"]
    return _TYPES[kind]
