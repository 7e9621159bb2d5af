"""Where the values of a record are.

The records of prepare_data differ only in their values. So the offsets of the values are found
once, in the first record, and many rows take two copies. Parsing every record takes several times
as long (benchmarks/input_pipeline.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_BYTES = 2  # the wire type of fields with a length: texts, messages, packed numbers
FLOATS, INTEGERS = 2, 3  # the fields of tf.train.Feature


class ValueList(NamedTuple):
    """A list of every record: its name, its field in tf.train.Feature, the number of values."""

    name: str
    kind: int
    length: int

    @property
    def type(self) -> type[np.generic]:
        """The type of its values in memory."""
        return np.float32 if self.kind == FLOATS else np.int64

    @property
    def words(self) -> str:
        """What it is, for messages."""
        return f"{'floats' if self.kind == FLOATS else 'int64'} in `{self.name}`"

    def values(self, named: Mapping[str, Any]) -> Sequence[float]:
        """Return the values in the features of an Example."""
        feature = named[self.name]
        return (feature.float_list if self.kind == FLOATS else feature.int64_list).value


class _Place(NamedTuple):
    """Where the values of a list are: [start, end) of a record, and the bytes of one value."""

    list: ValueList
    start: int
    end: int
    width: int


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
    def of(cls, record: bytes, lists: Sequence[ValueList]) -> Layout | None:
        """Return the layout of a record; None if this class cannot handle it."""
        try:
            found = dict(_places(record))
            places = [_place(record, item, *found[item.name]) for item in lists]
        except (IndexError, KeyError, ValueError):
            return None
        places.sort(key=lambda place: place.start)
        return cls(np.frombuffer(record, np.uint8), tuple(places))

    def values(self, records: Sequence[memoryview]) -> dict[str, np.ndarray] | None:
        """Return (rows, length) of each list; None if a record has a different layout."""
        size = len(self.record)
        if any(len(record) != size for record in records):
            return None
        return self.of_block(np.frombuffer(b"".join(records), np.uint8).reshape(-1, size))

    def of_block(self, block: np.ndarray) -> dict[str, np.ndarray] | None:
        """Return the same of (rows, bytes) uint8, records as long as `record`."""
        size, at = len(self.record), 0
        for place in (*self.places, None):
            between = slice(at, place.start if place else size)
            if (block[:, between] != self.record[between]).any():
                return None
            at = place.end if place else size
        found: dict[str, np.ndarray] = {}
        for place in self.places:
            if (values := self._decoded(block, place)) is None:
                return None
            found[place.list.name] = values
        return found

    def _decoded(self, block: np.ndarray, place: _Place) -> np.ndarray | None:
        """Return (rows, length) float32 or int64; None if a varint ends elsewhere."""
        part = np.ascontiguousarray(block[:, place.start : place.end])
        if place.list.kind == FLOATS:
            return part.view("<f4")
        if ((part ^ self.record[place.start : place.end]) & 0x80).any():
            return None
        groups = part.reshape(len(block), place.list.length, place.width) & 0x7F
        found = np.zeros(groups.shape[:2], np.uint64)
        for at in range(place.width):
            found |= groups[:, :, at].astype(np.uint64) << np.uint64(7 * at)
        return found.view(np.int64)


def _place(record: bytes, item: ValueList, kind: int, start: int, end: int) -> _Place:
    """Return the place of a list; raise ValueError if its values differ in width."""
    width, rest = divmod(end - start, item.length)
    if kind != item.kind or rest or (kind == FLOATS and width != 4) or not 1 <= width <= 10:
        raise ValueError
    if kind == INTEGERS:
        more = np.frombuffer(record, np.uint8)[start:end].reshape(-1, width) >= 0x80
        if not more[:, :-1].all() or more[:, -1].any():
            raise ValueError
    return _Place(item, start, end, width)


def _places(record: bytes) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield for each entry of an Example its name, the field of its list, and [start, end).

    Each is an entry of a map: {1: name, 2: Feature {kind: list {1: packed values}}}.
    """
    entries = _only(_fields(record, 0, len(record)))
    for number, *entry in _fields(record, *entries):
        if number != 1:
            raise ValueError
        (_, *name), (_, *feature) = sorted(_fields(record, *entry))
        [(kind, *values)] = _fields(record, *feature)
        yield record[slice(*name)].decode(), (kind, *_only(_fields(record, *values)))


def _only(fields: Iterator[tuple[int, int, int]]) -> tuple[int, int]:
    [(number, start, end)] = fields
    if number != 1:
        raise ValueError
    return start, end


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
