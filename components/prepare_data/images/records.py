"""Encodes pictures as TFRecord, without TensorFlow.

A record is a `tf.train.Example` with `label`, the index of the class as an int64, and `picture`,
the bytes of the file. `tfrecord.py` says how a record is framed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import google_crc32c

from kfp_tfjob.components.prepare_data.tfrecord import field, masked, varint

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
HEAD, TAIL = 12, 4  # bytes of framing before and after a record


class PictureEncoder:
    """Encodes pictures.

    Args:
        classes: The number of classes.
    """

    def __init__(self, classes: int) -> None:
        # An entry of the map: {1: name, 2: Feature {3: Int64List {1: packed values}}}.
        self._labels = [
            field(1, field(1, b"label") + field(2, field(3, field(1, varint(i)))))
            for i in range(classes)
        ]

    def encode(self, label: int, content: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the framed record of a picture in three parts, which save a copy.

        Args:
            label: The index of its class.
            content: All bytes of the file.
        """
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


def split_records(data: bytes) -> Iterator[memoryview | None]:
    """Yield the framed records of bytes, one after the other; None for what is damaged."""
    view, at = memoryview(data), 0
    while at < len(data):
        if at + HEAD + TAIL > len(data):
            yield None
            return
        end = at + HEAD + _LENGTH.unpack_from(data, at)[0]
        if end + TAIL > len(data):
            yield None
            return
        checksum = masked(google_crc32c.value(data[at + HEAD : end]))
        good = checksum == _CHECKSUM.unpack_from(data, end)[0]
        yield view[at : end + TAIL] if good else None
        at = end + TAIL
