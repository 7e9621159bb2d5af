"""Finds a table's values in the records of its shards, without parsing them.

A record is a `tf.train.Example` with these packed lists of fixed length; one that would be empty is
absent:

- `codes`: int64, a code for each category or text column, as varints of 4 bytes
- `dates`: int64, microseconds for each date column, as varints of 10 bytes
- `features`: floats, the numbers and booleans
- `label`: one int64 (the index of the class) or one float
- `weight`: one float, how much the row counts

So a table's records differ only in their values, which are copied from and to their places.
Parsing every record takes several times as long (benchmarks/input_pipeline.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_FLOATS, _INTEGERS = 2, 3  # the fields of tf.train.Feature
CODE_BYTES, _DATE_BYTES = 4, 10  # a negative number takes ten


class DamagedRecordError(ValueError):
    """A record has another layout than its schema declares."""


class Place(NamedTuple):
    """Where the values of a list are: from a byte of the record on, and the bytes of one value."""

    name: str
    is_float: bool
    length: int
    width: int
    start: int

    @property
    def end(self) -> int:
        """The byte after the last value."""
        return self.start + self.length * self.width


@dataclass(frozen=True)
class Layout:
    """The places of the values in a record.

    Attributes:
        record: A record with zeros as values.
        places: The lists, in the order of their bytes.
    """

    record: np.ndarray
    places: tuple[Place, ...]

    @classmethod
    def of(
        cls, lengths: tuple[int, int, int], classes: int | None, weighted: bool = False
    ) -> Layout:
        """Return the layout of a table's records.

        Args:
            lengths: The number of floats, codes and dates.
            classes: The number of classes; None if the label is a number.
            weighted: Whether rows have weights.
        """
        floats, codes, dates = lengths
        # A varint may have leading zero groups, so every class index gets the width of the last.
        label = (True, 1, 4) if classes is None else (False, 1, len(varint(max(classes - 1, 0))))
        lists = {
            "codes": (False, codes, CODE_BYTES),
            "dates": (False, dates, _DATE_BYTES),
            "features": (True, floats, 4),
            "label": label,
            "weight": (True, int(weighted), 4),
        }
        features, places = b"", []
        for name, (is_float, length, width) in lists.items():
            if length:
                zero = bytes(width) if is_float else b"\x80" * (width - 1) + b"\0"
                values = field(_FLOATS if is_float else _INTEGERS, field(1, zero * length))
                features += field(1, field(1, name.encode()) + field(2, values))
                # The values are at the end of their entry.
                places.append(Place(name, is_float, length, width, len(features) - length * width))
        record = field(1, features)
        before = len(record) - len(features)
        moved = tuple(place._replace(start=place.start + before) for place in places)
        return cls(np.frombuffer(record, np.uint8), moved)

    def decode(self, records: Sequence[bytes | memoryview]) -> dict[str, np.ndarray]:
        """Return `values` of separate records.

        Raises:
            DamagedRecordError: A record has another layout.
        """
        if other_sizes := set(map(len, records)) - {len(self.record)}:
            raise DamagedRecordError(
                f"a record of {min(other_sizes)} bytes instead of {len(self.record)}"
            )
        block = np.frombuffer(b"".join(records), np.uint8)
        return self.values(block.reshape(-1, len(self.record)))

    def values(self, block: np.ndarray) -> dict[str, np.ndarray]:
        """Return (rows, length) of each list: float32 or int64.

        Args:
            block: (rows, bytes) uint8, whole records.

        Raises:
            DamagedRecordError: A record has another layout.
        """
        at = 0
        slices = [(place.start, place.end) for place in self.places]
        for start, end in (*slices, (len(self.record),) * 2):
            if (block[:, at:start] != self.record[at:start]).any():
                raise DamagedRecordError(
                    f"a record with different columns: its bytes {at} to {start} differ"
                )
            at = end
        return {place.name: self._decoded(block, place) for place in self.places}

    def _decoded(self, block: np.ndarray, place: Place) -> np.ndarray:
        part = np.ascontiguousarray(block[:, place.start : place.end])
        if place.is_float:
            return part.view("<f4")
        if ((part ^ self.record[place.start : place.end]) & 0x80).any():
            raise DamagedRecordError(f"a number of a different width in `{place.name}`")
        groups = part.reshape(len(block), place.length, place.width) & 0x7F
        numbers = np.zeros(groups.shape[:2], np.uint64)
        for at in range(place.width):
            numbers |= groups[:, :, at].astype(np.uint64) << np.uint64(7 * at)
        return numbers.view(np.int64)


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
