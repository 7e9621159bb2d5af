"""Encodes rows as TFRecord, without TensorFlow.

A record is a `tf.train.Example` with the float list `features`, packed, of fixed length, and the
list `label` with one int64 (the index of the class) or one float. All records of a dataset have the
same length, so the bytes that never change are laid out once and only the values are filled in.

TFRecord framing: length (8 bytes), masked CRC32C of the length, the record, masked CRC32C of the
record; all little endian.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

_MASK_DELTA = 0xA282EAD8
_FLOAT_LIST, _INT64_LIST = 2, 3  # field numbers in tf.train.Feature


class Encoder:
    """Encodes rows of one shape.

    Args:
        features: Values in a row.
        classes: Number of classes; None when the label is a number.
    """

    def __init__(self, features: int, classes: int | None) -> None:
        # A varint may have leading zero groups, so every class index gets the width of the last.
        self._label_bytes = 4 if classes is None else len(_varint(max(classes - 1, 0)))
        self._is_class = classes is not None
        label = _field(1, bytes(self._label_bytes))
        kind = _INT64_LIST if self._is_class else _FLOAT_LIST
        example, positions = _example(
            {
                "features": _field(_FLOAT_LIST, _field(1, bytes(4 * features))),
                "label": _field(kind, label),
            }
        )
        length = struct.pack("<Q", len(example))
        self._head = len(length) + 4
        self._example_bytes = len(example)
        # A value is at the end of its entry, after the fixed bytes.
        self._features_at = self._head + positions["features"] - 4 * features
        self._label_at = self._head + positions["label"] - self._label_bytes
        self._features = features
        template = length + struct.pack("<I", _masked(google_crc32c.value(length))) + example
        self._template = np.frombuffer(template + bytes(4), np.uint8)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record with its framing."""
        return len(self._template)

    def encode(self, features: np.ndarray, labels: np.ndarray) -> memoryview:
        """Return the framed records of rows.

        Args:
            features: float32 of shape [rows, features].
            labels: Class indices or numbers, of shape [rows].

        Returns:
            rows * record_bytes bytes.
        """
        rows, size = len(features), self.record_bytes
        if not rows:
            return memoryview(b"")
        buffer = np.empty((rows, size), np.uint8)
        buffer[:] = self._template
        values = np.ndarray((rows, self._features), "<f4", buffer, self._features_at, (size, 4))
        values[:] = features
        if self._is_class:
            for i in range(self._label_bytes):
                group = (labels >> (7 * i)) & 0x7F
                last = i == self._label_bytes - 1
                buffer[:, self._label_at + i] = group if last else group | 0x80
        else:
            np.ndarray((rows,), "<f4", buffer, self._label_at, (size,))[:] = labels
        raw, end = buffer.tobytes(), self._head + self._example_bytes
        checksums = np.fromiter(
            (
                google_crc32c.value(raw[at + self._head : at + end])
                for at in range(0, len(raw), size)
            ),
            np.uint32,
            rows,
        )
        np.ndarray((rows,), "<u4", buffer, end, (size,))[:] = _masked(checksums)
        return memoryview(buffer).cast("B")


def _masked(checksum: int | np.ndarray) -> int | np.ndarray:
    """Mask a CRC32C as TFRecord does, so that a checksum of checksums stays meaningful."""
    if isinstance(checksum, np.ndarray):
        rotated = (checksum >> np.uint32(15)) | (checksum << np.uint32(17))
        return rotated + np.uint32(_MASK_DELTA)  # wraps at 32 bits
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _example(entries: dict[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """Return a tf.train.Example, and where in it the value of each entry ends."""
    features, ends = b"", {}
    for name, feature in entries.items():
        features += _field(1, _field(1, name.encode()) + _field(2, feature))
        ends[name] = len(features)
    example = _field(1, features)
    return example, {name: end + len(example) - len(features) for name, end in ends.items()}
