"""Writes the shards of images as TFRecord, without TensorFlow.

A record is a `tf.train.Example` with `label`, and `picture`, the bytes of the file.

TFRecord framing: length (8 bytes), masked CRC32C of the length, the record, masked CRC32C of the
record; all little endian.
"""

from __future__ import annotations

import struct

import google_crc32c

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
HEAD, TAIL = 12, 4  # bytes of framing before and after a record
_MASK_DELTA = 0xA282EAD8


def masked(checksum: int) -> int:
    """Mask a CRC32C as TFRecord does, so that a checksum of checksums stays meaningful."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class PictureEncoder:
    """Encodes images of so many classes."""

    def __init__(self, classes: int) -> None:
        # An entry of the map: {1: name, 2: Feature {3: Int64List {1: packed values}}}.
        self._labels = [
            _field(1, _field(1, b"label") + _field(2, _field(3, _field(1, _varint(i)))))
            for i in range(classes)
        ]

    def encode(self, label: int, content: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the framed record of an image in three parts, which save a copy."""
        size = len(content)
        # The lengths of the messages around the content, from the inside: BytesList, Feature,
        # the entry of the map, and the map.
        value = b"\x0a" + _varint(size)
        listed = b"\x0a" + _varint(len(value) + size) + value
        feature = b"\x0a\x07picture\x12" + _varint(len(listed) + size) + listed
        entry = b"\x0a" + _varint(len(feature) + size) + feature
        before = self._labels[label] + entry
        before = b"\x0a" + _varint(len(before) + size) + before
        length = _LENGTH.pack(len(before) + size)
        checksum = google_crc32c.extend(google_crc32c.value(before), content)
        head = length + _CHECKSUM.pack(masked(google_crc32c.value(length))) + before
        return head, content, _CHECKSUM.pack(masked(checksum))


def is_whole(record: bytes) -> bool:
    """Return whether a framed record has the length and the checksum that it names."""
    content = record[HEAD:-TAIL]
    length = record[: _LENGTH.size] == _LENGTH.pack(len(content))
    return length and record[-TAIL:] == _CHECKSUM.pack(masked(google_crc32c.value(content)))


def _varint(value: int) -> bytes:
    """Return a number of 0 or more as a protocol buffer writes it."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content
