"""Encodes rows as TFRecord, without TensorFlow.

A table's records are those of features/record_layout.py. A record of an image has `label` and
`picture`, the bytes of the file.

TFRecord framing: length (8 bytes), masked CRC32C of the length, the record, masked CRC32C of the
record; all little endian.
"""

from __future__ import annotations

import struct
from itertools import starmap

import google_crc32c
import numpy as np

from kfp_tfjob.features.record_layout import CODE_BYTES, Layout, field, varint

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
HEAD, TAIL = 12, 4  # bytes of framing before and after a record
_MASK_DELTA = 0xA282EAD8
MOST_CODES = 1 << (7 * CODE_BYTES)


class Encoder:
    """Encodes rows of one shape: so many numbers, codes below MOST_CODES and dates.

    The label is a class, or a number if `classes` is None.
    """

    def __init__(
        self,
        features: int,
        classes: int | None,
        codes: int = 0,
        dates: int = 0,
        weighted: bool = False,
    ) -> None:
        self._layout = Layout.of((features, codes, dates), classes, weighted)
        record = self._layout.record.tobytes()
        length = _LENGTH.pack(len(record))
        head = length + _CHECKSUM.pack(masked(google_crc32c.value(length)))
        self._template = np.frombuffer(head + record + bytes(TAIL), np.uint8)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record with its framing."""
        return len(self._template)

    def encode(
        self,
        features: np.ndarray,
        labels: np.ndarray,
        codes: np.ndarray | None = None,
        dates: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> memoryview:
        """Return the framed records of rows.

        Args:
            features: float32 of shape [rows, features].
            labels: Class indices or numbers, of shape [rows].
            codes: Integers of shape [rows, codes], from 0.
            dates: int64 of shape [rows, dates].
            weights: float32 of shape [rows].
        """
        rows, size = len(labels), self.record_bytes
        if not rows:
            return memoryview(b"")
        buffer = np.empty((rows, size), np.uint8)
        buffer[:] = self._template
        given = {"features": features, "codes": codes, "dates": dates, "label": labels[:, None]}
        given["weight"] = None if weights is None else weights[:, None]
        for place in self._layout.places:
            values, at = given[place.name], HEAD + place.start
            assert values is not None
            if place.is_float:
                np.ndarray((rows, place.length), "<f4", buffer, at, (size, 4))[:] = values
            else:
                _write_varints(buffer, at, place.width, values)
        found, record_bytes = buffer.data.cast("B"), size - HEAD - TAIL
        examples = struct.iter_unpack(f"{HEAD}x{record_bytes}s{TAIL}x", found)
        checksums = np.fromiter(starmap(google_crc32c.value, examples), np.uint32, rows)
        np.ndarray((rows,), "<u4", buffer, size - TAIL, (size,))[:] = masked(checksums)
        return found


def _write_varints(buffer: np.ndarray, at: int, width: int, values: np.ndarray) -> None:
    """Write integers of shape [rows, columns] as varints of a fixed width, one after the other."""
    columns = values.shape[1]
    left = values.astype(np.int64).view(np.uint64)
    for i in range(width):
        group = (left & np.uint64(0x7F)).astype(np.uint8)
        more = 0 if i == width - 1 else 0x80
        buffer[:, at + i : at + width * columns : width] = group | np.uint8(more)
        left >>= np.uint64(7)


def masked(checksum: int | np.ndarray) -> int | np.ndarray:
    """Mask a CRC32C as TFRecord does, so that a checksum of checksums stays meaningful."""
    if isinstance(checksum, np.ndarray):
        rotated = (checksum >> np.uint32(15)) | (checksum << np.uint32(17))
        return rotated + np.uint32(_MASK_DELTA)  # wraps at 32 bits
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class PictureEncoder:
    """Encodes images of so many classes."""

    def __init__(self, classes: int) -> None:
        # An entry of the map: {1: name, 2: Feature {3: Int64List {1: packed values}}}.
        self._labels = [
            field(1, field(1, b"label") + field(2, field(3, field(1, varint(i)))))
            for i in range(classes)
        ]

    def encode(self, label: int, content: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the framed record of an image in three parts, which save a copy."""
        size = len(content)
        # The lengths of the messages around the content, from the inside: BytesList, Feature,
        # the entry of the map, and the map.
        value = b"\x0a" + varint(size)
        listed = b"\x0a" + varint(len(value) + size) + value
        feature = b"\x0a\x07picture\x12" + varint(len(listed) + size) + listed
        entry = b"\x0a" + varint(len(feature) + size) + feature
        before = self._labels[label] + entry
        before = b"\x0a" + varint(len(before) + size) + before
        length = _LENGTH.pack(len(before) + size)
        checksum = google_crc32c.extend(google_crc32c.value(before), content)
        head = length + _CHECKSUM.pack(masked(google_crc32c.value(length))) + before
        return head, content, _CHECKSUM.pack(masked(checksum))


def is_whole(record: bytes) -> bool:
    """Return whether a framed record has the length and the checksum that it names."""
    content = record[HEAD:-TAIL]
    length = record[: _LENGTH.size] == _LENGTH.pack(len(content))
    return length and record[-TAIL:] == _CHECKSUM.pack(masked(google_crc32c.value(content)))
