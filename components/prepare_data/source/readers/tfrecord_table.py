"""Reads records of tf.train.Example as arrow columns, without TensorFlow.

The columns are the features of the first records; a feature with several numbers is one column for
each. The checksums of all records are compared.

Protobuf skips what a message does not declare, so any record may look like an Example that lacks
some of its data. A record with anything else in it is refused, and a feature that no earlier record
has is a fault of its row.
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

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.options.data import DataOptions

from ...faults import BlockFaults
from ..column_names import Columns
from .arrow_table import Chunk, Reader
from .byte_range import LONGEST_RECORD, Span

_LOOKED = 1_000  # records in which every feature occurs
_MOST_BYTES = 16 << 20  # of the records of a chunk
_MOST_RECORDS = 8192  # of a chunk: each is an object of Python
_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
_ZEROS = {"bytes_list": b"", "float_list": 0.0, "int64_list": 0}
_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True)
class _Feature:
    """A feature's type and length in the first record that contains it.

    Attributes:
        kind: bytes_list, float_list or int64_list.
        length: The number of values.
    """

    kind: str
    length: int

    @property
    def type(self) -> pa.DataType:
        """Its column's type; several strings stay a list of any length."""
        single = _KINDS[self.kind]
        if self.length == 1:
            return single
        return pa.list_(single) if self.kind == "bytes_list" else pa.list_(single, self.length)


def masked(checksum: int) -> int:
    """Mask a CRC32C as TFRecord does, so that a checksum of checksums stays meaningful."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


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
        self._new_keys = options.columns is None  # are faults
        self._first: list[bytes] = []
        self._features: dict[str, _Feature] = {}
        size = 0
        for record in self._records:
            self._first.append(record)
            size += len(record)
            for key, feature in self._parsed(record, len(self._first)).items():
                kind = self._kind(key, feature, len(self._first))
                if kind and (length := len(getattr(feature, kind).value)):
                    self._features.setdefault(key, _Feature(kind, length))
            if len(self._first) == _LOOKED or size > _MOST_BYTES:
                break
        self._known = {*self._features, *options.drop}
        # Sorted by name, because protobuf orders a record's features differently in each process.
        self.schema = pa.schema(
            [(key, feature.type) for key, feature in sorted(self._features.items())]
        )

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file begins with a length and its checksum."""
        return len(head) >= 12 and _crc_of(head[:8]) == head[8:12]

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` records at a time."""
        row = 1
        for records in self._batches(min(rows, _MOST_RECORDS)):
            lines, parsed = [], []
            lost = BlockFaults(self._name, np.empty(0, np.int64))
            for number, record in enumerate(records, row):
                features = self._parsed(record, number)
                new = self._new_key(features, number)
                if new is not None:
                    lost.lost(number, "keys", new)
                else:
                    lines.append(number)
                    parsed.append(features)
            faults = BlockFaults(self._name, np.array(lines, np.int64))
            faults.merge(lost)
            values = {key: self._column(key, parsed, faults) for key in columns.all}
            yield Chunk(values, faults, sum(map(len, records)))
            row += len(records)

    def _new_key(self, features: Any, number: int) -> str | None:
        """Return a feature that has values and is in none of the first records, if there is one."""
        if not self._new_keys or self._known.issuperset(features):
            return None
        for key in sorted(set(features) - self._known):
            kind = self._kind(key, features[key], number)
            if kind and getattr(features[key], kind).value:
                return key
        return None

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
        expected = self._features[key]
        gap = [_ZEROS[expected.kind]] * expected.length
        values, absent = [], np.zeros(len(parsed), bool)
        wrong, descriptions = np.zeros(len(parsed), bool), {}
        for i, features in enumerate(parsed):
            number = int(faults.lines[i])
            kind = self._kind(key, features[key], number) if key in features else None
            cell = getattr(features[key], kind).value if kind else ()
            if kind == expected.kind and len(cell) == expected.length:
                values.append(cell)
                continue
            values.append(gap)
            absent[i] = True
            if len(cell):
                wrong[i] = True
                descriptions[i] = f"{kind} of {len(cell):,}"
        faults.mark(wrong, "list", key, lambda i: descriptions[i])
        if expected.length == 1:
            return pa.array([value for (value,) in values], expected.type, mask=absent)
        flat = pa.array(list(chain.from_iterable(values)), _KINDS[expected.kind])
        return pa.FixedSizeListArray.from_arrays(flat, expected.length, mask=pa.array(absent))

    def _parsed(self, record: bytes, number: int) -> Any:
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        try:
            example = _example().FromString(record)
        except DecodeError as error:
            raise self._other_record(number, str(error)) from error
        if example.HasField("feature_lists"):
            raise self._series(number, sorted(example.feature_lists.feature_list))
        for message in (example, example.features):
            if unknown := [f"field {field.field_number}" for field in UnknownFieldSet(message)]:
                raise self._other_record(number, f"a message with {listed(unknown, 5)}")
        return example.features.feature

    def _kind(self, key: str, feature: Any, number: int) -> str | None:
        """Return bytes_list, float_list or int64_list; None for a feature without a value."""
        kind = feature.WhichOneof("kind")
        if kind is None and feature.ByteSize():  # of fields that are not declared
            raise self._other_record(number, f"the feature {key!r} with values of another kind")
        return kind

    def _series(self, number: int, names: list[str]) -> DataError:
        return DataError(
            Problem(
                f"record {number:,} of {self._name} is a tf.train.SequenceExample",
                received=f"the series {listed(map(repr, names), 10)} in feature_lists",
                expected="a tf.train.Example in each record",
                fix="write each series as a feature with the same number of values in every record,"
                " or write a function that reads the file, and name the function in"
                " data_options.reader",
            )
        )

    def _other_record(self, number: int, received: str) -> DataError:
        return DataError(
            Problem(
                f"record {number:,} of {self._name} is not a tf.train.Example",
                received=received,
                expected="a tf.train.Example in each record",
                fix="write the rows as tf.train.Example, or write a function that reads the"
                " file, and name the function in data_options.reader",
            )
        )

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
                        received=f"{length:,} bytes",
                        expected=f"at most {LONGEST_RECORD:,} bytes",
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
message_type { name: "FeatureList"
  field { name: "feature" number: 1 type_name: ".kfp_tfjob.Feature" label: LABEL_REPEATED } }
message_type { name: "FeatureLists"
  nested_type { name: "FeatureListEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".kfp_tfjob.FeatureList" } }
  field { name: "feature_list" number: 1 type_name: ".kfp_tfjob.FeatureLists.FeatureListEntry"
    label: LABEL_REPEATED } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: ".kfp_tfjob.Features" }
  field { name: "feature_lists" number: 2 type_name: ".kfp_tfjob.FeatureLists" } }
"""


@cache
def _example() -> Any:
    """Return the class of tf.train.Example, made from its definition.

    It also has the feature lists of tf.train.SequenceExample, whose context has the number of an
    Example's features.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_DEFINITION, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kfp_tfjob.Example"))
