"""Reads records of tf.train.Example as arrow columns, without TensorFlow.

The columns are the features of the first records; a feature with several numbers is one column for
each. The checksums of all records are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import IO, Any

import google_crc32c
import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    Chunk,
    Reader,
)
from kfp_tfjob.components.prepare_data.source.readers.byte_range import LONGEST_RECORD, Span
from kfp_tfjob.components.prepare_data.tfrecord import masked
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

_LOOKED = 1_000  # records in which every feature occurs
_MOST_BYTES = 16 << 20  # of the records of a chunk
_MOST_RECORDS = 8192  # of a chunk: each is an object of Python
_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_ZEROS = {"bytes_list": b"", "float_list": 0.0, "int64_list": 0}


@dataclass(frozen=True)
class _Feature:
    """What the first record with a feature has in it.

    Attributes:
        kind: bytes_list, float_list or int64_list.
        length: The number of values.
    """

    kind: str
    length: int

    @property
    def type(self) -> pa.DataType:
        """Its column's type; several strings make no columns."""
        single = _KINDS[self.kind]
        if self.length == 1:
            return single
        return pa.list_(single) if self.kind == "bytes_list" else pa.list_(single, self.length)


class TFRecordTable(Reader):
    """A TFRecord file with a tf.train.Example in each record.

    Raises:
        DataError: It is damaged, or a record is no tf.train.Example.
    """

    def __init__(
        self, stream: IO[bytes], name: str, options: DataOptions, block: int, span: Span | None
    ) -> None:
        self._stream, self._name = stream, name
        self._records = self._read()
        self._first: list[bytes] = []
        self._features: dict[str, _Feature] = {}
        size = 0
        for record in self._records:
            self._first.append(record)
            size += len(record)
            for key, feature in self._parsed(record, len(self._first)).items():
                kind = feature.WhichOneof("kind")
                length = len(getattr(feature, kind).value) if kind else 0
                if length:
                    self._features.setdefault(key, _Feature(kind, length))
            if len(self._first) == _LOOKED or size > _MOST_BYTES:
                break
        # By name: a record has no order, and protobuf draws another one in every process.
        self.schema = pa.schema([(key, it.type) for key, it in sorted(self._features.items())])

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file begins with a length and its checksum."""
        return len(head) >= 12 and _crc_of(head[:8]) == head[8:12]

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` records at a time."""
        row = 1
        for records in self._batches(min(rows, _MOST_RECORDS)):
            faults = BlockFaults(self._name, np.arange(row, row + len(records)))
            parsed = [self._parsed(record, row + i) for i, record in enumerate(records)]
            found = {key: self._column(key, parsed, faults) for key in columns.all}
            yield Chunk(found, faults, sum(map(len, records)))
            row += len(records)

    def _batches(self, rows: int) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        for record in chain(self._first, self._records):
            if batch and (len(batch) == rows or size + len(record) > _MOST_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += len(record)
        if batch:
            yield batch

    def _column(self, key: str, parsed: list[Any], faults: BlockFaults) -> pa.Array:
        """Return a feature in each record; null where a record lacks it."""
        wanted = self._features[key]
        gap = [_ZEROS[wanted.kind]] * wanted.length
        values, absent = [], np.zeros(len(parsed), bool)
        wrong, shown = np.zeros(len(parsed), bool), {}
        for i, features in enumerate(parsed):
            feature = features[key] if key in features else None
            kind = feature.WhichOneof("kind") if feature is not None else None
            found = getattr(feature, kind).value if kind else ()
            if kind == wanted.kind and len(found) == wanted.length:
                values.append(found)
                continue
            values.append(gap)
            absent[i] = True
            if len(found):
                wrong[i] = True
                shown[i] = f"{kind} of {len(found):,}"
        faults.mark(wrong, "list", key, lambda i: shown[i])
        if wanted.length == 1:
            return pa.array([value for (value,) in values], wanted.type, mask=absent)
        flat = pa.array(list(chain.from_iterable(values)), _KINDS[wanted.kind])
        return pa.FixedSizeListArray.from_arrays(flat, wanted.length, mask=pa.array(absent))

    def _parsed(self, record: bytes, number: int) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return _example().FromString(record).features.feature
        except DecodeError as error:
            raise self._damaged(f"record {number:,} is not a tf.train.Example ({error})") from error

    def _read(self) -> Iterator[bytes]:
        number = 0
        while head := self._stream.read(12):
            number += 1
            if len(head) < 12 or _crc_of(head[:8]) != head[8:]:
                raise self._damaged(f"record {number:,} has no valid length")
            length = struct.unpack("<Q", head[:8])[0]
            if length > LONGEST_RECORD:
                raise DataError(
                    Problem(
                        f"record {number:,} of {self._name} is too long",
                        received=f"{length / (1 << 20):,.0f} MiB",
                        expected=f"at most {LONGEST_RECORD >> 20} MiB",
                        fix="write the file again with smaller records",
                    )
                )
            data = self._stream.read(length + 4)
            if len(data) < length + 4:
                raise self._damaged(f"record {number:,} ends early")
            if _crc_of(data[:-4]) != data[-4:]:
                raise self._damaged(f"record {number:,} has a wrong checksum")
            yield data[:-4]

    def _damaged(self, received: str) -> DataError:
        return DataError(
            Problem(
                f"{self._name} is damaged",
                received=received,
                expected="a TFRecord file with a tf.train.Example in each record",
                fix="write the file again",
            )
        )


def _crc_of(data: bytes) -> bytes:
    return struct.pack("<I", masked(google_crc32c.value(data)))


_DEFINITION = """
name: "kfp_tfjob/example.proto" package: "kfp_tfjob" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".kfp_tfjob.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".kfp_tfjob.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".kfp_tfjob.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".kfp_tfjob.Feature" } }
  field { name: "feature" number: 1 type_name: ".kfp_tfjob.Features.FeatureEntry"
    label: LABEL_REPEATED } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: ".kfp_tfjob.Features" } }
"""


@cache
def _example() -> Any:
    """Return the class of tf.train.Example, made from its definition."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_DEFINITION, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kfp_tfjob.Example"))
