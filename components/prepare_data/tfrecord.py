"""Encodes rows as TFRecord, without TensorFlow.

A record is a `tf.train.Example` with these packed lists of fixed length; one that would be empty is
absent:

- `codes`: int64, a code for each category or text column, as varints of 4 bytes
- `dates`: int64, microseconds for each date column, as varints of 10 bytes
- `features`: floats, the numbers and booleans
- `label`: one int64 (the index of the class) or one float
- `weight`: one float, how much the row counts

A record of a picture has `label` and `picture`, the bytes of the file.

All records of a table have the same length, so the bytes that never change are laid out once and
only the values are filled in.

TFRecord framing: length (8 bytes), masked CRC32C of the length, the record, masked CRC32C of the
record; all little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import starmap

import google_crc32c
import numpy as np

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.record_layout import Layout

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
HEAD, TAIL = 12, 4  # bytes of framing before and after a record
_MASK_DELTA = 0xA282EAD8
_FLOATS, _INTEGERS = 2, 3  # the fields of tf.train.Feature
_CODE_BYTES, _DATE_BYTES = 4, 10  # a negative number takes ten
MOST_CODES = 1 << (7 * _CODE_BYTES)


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
        # A varint may have leading zero groups, so every class index gets the width of the last.
        self._label_bytes = 4 if classes is None else len(varint(max(classes - 1, 0)))
        self._is_class = classes is not None
        self._features, self._codes, self._dates = features, codes, dates
        self._weighted = weighted
        lists = {
            "codes": (_INTEGERS, _CODE_BYTES * codes),
            "dates": (_INTEGERS, _DATE_BYTES * dates),
            "features": (_FLOATS, 4 * features),
            "label": (_INTEGERS if self._is_class else _FLOATS, self._label_bytes),
            "weight": (_FLOATS, 4 * weighted),
        }
        example, ends = _example(
            {
                name: field(kind, field(1, bytes(size)))
                for name, (kind, size) in lists.items()
                if size
            }
        )
        length = struct.pack("<Q", len(example))
        self._head = len(length) + 4
        self._example_bytes = len(example)
        # A value is at the end of its entry, after the fixed bytes.
        self._at = {name: self._head + end - lists[name][1] for name, end in ends.items()}
        template = length + struct.pack("<I", masked(google_crc32c.value(length))) + example
        self._template = np.frombuffer(template + bytes(4), np.uint8)

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
        if self._features:
            at = self._at["features"]
            values = np.ndarray((rows, self._features), "<f4", buffer, at, (size, 4))
            values[:] = features
        if codes is not None and self._codes:
            _write_varints(buffer, self._at["codes"], _CODE_BYTES, codes)
        if dates is not None and self._dates:
            _write_varints(buffer, self._at["dates"], _DATE_BYTES, dates)
        if self._is_class:
            _write_varints(buffer, self._at["label"], self._label_bytes, labels[:, None])
        else:
            np.ndarray((rows,), "<f4", buffer, self._at["label"], (size,))[:] = labels
        if weights is not None and self._weighted:
            np.ndarray((rows,), "<f4", buffer, self._at["weight"], (size,))[:] = weights
        found, end = buffer.data.cast("B"), self._head + self._example_bytes
        examples = struct.iter_unpack(f"{self._head}x{self._example_bytes}s4x", found)
        checksums = np.fromiter(starmap(google_crc32c.value, examples), np.uint32, rows)
        np.ndarray((rows,), "<u4", buffer, end, (size,))[:] = masked(checksums)
        return found

    def decode(self, data: bytes, coding: Coding) -> dict[str, np.ndarray]:
        """Return (rows, values) of each list in records of these columns, by its name.

        Raises:
            ValueError: They are other records, or damaged.
        """
        size = self.record_bytes
        rows, rest = divmod(len(data), size)
        if rest or not rows:
            raise ValueError(f"{len(data):,} bytes are not whole records of {size:,} bytes")
        records = np.frombuffer(data, np.uint8).reshape(rows, size)[:, HEAD:-TAIL]
        layout = Layout.of(records[0].tobytes(), coding, self._is_class, self._weighted)
        found = layout.values(records)
        features = found.get("features", np.empty((rows, 0), np.float32))
        weights = found["weight"][:, 0] if "weight" in found else None
        labels, codes, dates = found["label"][:, 0], found.get("codes"), found.get("dates")
        if self.encode(features, labels, codes, dates, weights) != data:
            raise ValueError("the bytes of the records differ from those of their rows")
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


def varint(value: int) -> bytes:
    """Return a number of 0 or more as a protocol buffer writes it."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


def _example(entries: dict[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """Return a tf.train.Example, and where in it the value of each entry ends."""
    features, ends = b"", {}
    for name, feature in entries.items():
        features += field(1, field(1, name.encode()) + field(2, feature))
        ends[name] = len(features)
    example = field(1, features)
    return example, {name: end + len(example) - len(features) for name, end in ends.items()}


class PictureEncoder:
    """Encodes pictures of so many classes."""

    def __init__(self, classes: int) -> None:
        # An entry of the map: {1: name, 2: Feature {3: Int64List {1: packed values}}}.
        self._labels = [
            field(1, field(1, b"label") + field(2, field(3, field(1, varint(i)))))
            for i in range(classes)
        ]

    def encode(self, label: int, content: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the framed record of a picture in three parts, which save a copy."""
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
