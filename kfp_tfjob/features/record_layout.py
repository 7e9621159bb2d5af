"""Where the values of a record are.

The records of a table that prepare_data wrote differ only in their values. So the offsets of the
values are found once, in the first record, and many rows take two copies. Parsing every record
takes several times as long (benchmarks/input_pipeline.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kfp_tfjob.features.coding import Coding

_BYTES = 2  # the wire type of fields with a length: texts, messages, packed numbers
_FLOATS, _INTEGERS = 2, 3  # the fields of tf.train.Feature


class _Place(NamedTuple):
    """Where the values of a list are: [start, end) of a record, and the bytes of one value."""

    name: str
    kind: int
    length: int
    start: int
    end: int

    @property
    def width(self) -> int:
        return (self.end - self.start) // self.length


@dataclass(frozen=True)
class Layout:
    """The places of the values in a record.

    Attributes:
        record: A record with the right bytes between the values.
        places: The lists, in the order of their bytes.
    """

    record: np.ndarray
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, record: bytes, coding: Coding, is_class: bool, is_weighted: bool) -> Layout:
        """Return the layout of a record.

        Args:
            record: The first record.
            coding: The columns.
            is_class: Whether the label is a class, and not a number.
            is_weighted: Whether rows have weights.

        Raises:
            ValueError: It has other values.
        """
        floats, codes, dates = coding.lengths
        lists = {
            "features": (_FLOATS, floats),
            "codes": (_INTEGERS, codes),
            "dates": (_INTEGERS, dates),
            "label": (_INTEGERS if is_class else _FLOATS, 1),
            "weight": (_FLOATS, int(is_weighted)),
        }
        expected = {name: it for name, it in lists.items() if it[1]}
        try:
            found = dict(_lists(record))
        except (IndexError, ValueError):
            found = {}
        places = []
        for name, (kind, length) in expected.items():
            number, start, end = found.get(name, (0, 0, 0))
            place = _Place(name, kind, length, start, end)
            if number != kind or not _fits(record, place):
                values = "floats" if kind == _FLOATS else "int64"
                raise ValueError(f"no record with {length} {values} in `{name}`")
            places.append(place)
        places.sort(key=lambda place: place.start)
        return cls(np.frombuffer(record, np.uint8), tuple(places))

    def values(self, block: np.ndarray) -> dict[str, np.ndarray]:
        """Return (rows, length) of each list: float32 or int64.

        Args:
            block: (rows, bytes) uint8, whole records.

        Raises:
            ValueError: A record has another layout.
        """
        size, at = len(self.record), 0
        if block.shape[1] != size:
            raise ValueError(f"a record of {block.shape[1]} bytes, where the first has {size}")
        for start, end in (*((it.start, it.end) for it in self.places), (size, size)):
            if (block[:, at:start] != self.record[at:start]).any():
                raise ValueError(f"a record whose bytes {at} to {start} differ from the first's")
            at = end
        return {place.name: self._decoded(block, place) for place in self.places}

    def _decoded(self, block: np.ndarray, place: _Place) -> np.ndarray:
        part = np.ascontiguousarray(block[:, place.start : place.end])
        if place.kind == _FLOATS:
            return part.view("<f4")
        if ((part ^ self.record[place.start : place.end]) & 0x80).any():
            raise ValueError(f"a number in `{place.name}` with another width than in the first row")
        groups = part.reshape(len(block), place.length, place.width) & 0x7F
        found = np.zeros(groups.shape[:2], np.uint64)
        for at in range(place.width):
            found |= groups[:, :, at].astype(np.uint64) << np.uint64(7 * at)
        return found.view(np.int64)


def _fits(record: bytes, place: _Place) -> bool:
    """Tell whether a list has its number of values, all of the same width."""
    if (place.end - place.start) % place.length:
        return False
    if place.kind == _FLOATS:
        return place.width == 4
    more = np.frombuffer(record, np.uint8)[place.start : place.end] >= 0x80
    more = more.reshape(place.length, place.width)
    return 1 <= place.width <= 10 and bool(more[:, :-1].all() and not more[:, -1].any())


def _lists(record: bytes) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield for each entry of an Example its name, the field of its list, and [start, end).

    Each is an entry of a map: {1: name, 2: Feature {kind: list {1: packed values}}}.
    """
    [(_, *entries)] = _fields(record, 0, len(record))
    for _, *entry in _fields(record, *entries):
        (_, *name), (_, *feature) = _fields(record, *entry)
        [(kind, *values)] = _fields(record, *feature)
        [(_, start, end)] = _fields(record, *values)
        yield record[slice(*name)].decode(), (kind, start, end)


def _fields(record: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a message, and [start, end) of its content."""
    while at < end:
        tag, at = _varint(record, at)
        length, at = _varint(record, at)
        if tag & 7 != _BYTES or at + length > end:
            raise ValueError
        yield tag >> 3, at, at + length
        at += length


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while record[at] >= 0x80:
        value |= (record[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | record[at] << shift, at + 1
