"""The features and labels of records; each record is a `tf.train.Example`.

The records of prepare_data differ only in their values. So the offsets of the values are found
once, in the first record, and a batch takes two copies. Parsing every record takes several times
as long (benchmarks/input_pipeline.py). Records of other programs are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset
from kfp_tfjob.trainer.records import TFRecords

_BYTES = 2  # the wire type of fields with a length: texts, messages, packed numbers
_FLOATS, _INTEGERS = 2, 3  # the fields of tf.train.Feature
_SCAN_ROWS = 8192


class Rows:
    """The rows of a split.

    Args:
        dataset: The dataset, for its columns and the kind of label.
        records: The records of the split.
    """

    def __init__(self, dataset: Dataset, records: TFRecords) -> None:
        self._classes, self._coding = dataset.num_classes, dataset.coding
        self._classification = dataset.task == CLASSIFICATION
        self._records = records
        floats, codes, dates = (
            self._coding.lengths if self._coding else (dataset.num_features, 0, 0)
        )
        self._lists = [
            item
            for item in (
                _List("features", _FLOATS, floats),
                _List("codes", _INTEGERS, codes),
                _List("dates", _INTEGERS, dates),
            )
            if item.length
        ]
        self._lists.append(_List("label", _INTEGERS if self._classification else _FLOATS, 1))
        self._is_weighted = dataset.row_weights is not None
        if self._is_weighted:
            self._lists.append(_List("weight", _FLOATS, 1))
        first = records.take(np.arange(min(1, len(records))))
        self._layout = _Layout.of(bytes(first[0]), self._lists) if first else None

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of these rows, as `take_weighted` does."""
        return self.take_weighted(rows)[:2]

    def take_weighted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return these rows, in their order.

        Returns:
            (rows, packed columns) float32; (rows,) the labels: int64 classes, or float32 values;
            and (rows,) float32 weights as in the table, None if all rows count the same.

        Raises:
            DataError: A record is damaged or not of this dataset, a code is not in its dictionary,
                or a label is not a class.
        """
        records = self._records.take(rows)
        found = (self._layout.values(records) if self._layout else None) or self._parse(records)
        labels = found["label"][:, 0]
        if self._classification:
            _check(labels, self._classes)
        weights = found["weight"][:, 0] if self._is_weighted else None
        if self._coding is None:
            return found["features"], labels, weights
        nothing = np.empty((len(records), 0), np.int64)
        floats = found.get("features", nothing.astype(np.float32))
        packed = self._coding.pack(floats, found.get("codes", nothing), found.get("dates", nothing))
        return packed, labels, weights

    def labels(self) -> np.ndarray:
        """Return (rows,) the labels of the whole split.

        Raises:
            DataError: The same as `take`.
        """
        return np.concatenate([np.empty(0, self.label_type), *(part[1] for part in self._scan())])

    def weights(self) -> np.ndarray | None:
        """Return (rows,) float32 the weights of the whole split; None if all rows count the same.

        Raises:
            DataError: The same as `take`.
        """
        if not self._is_weighted:
            return None
        return np.concatenate([np.empty(0, np.float32), *(part[2] for part in self._scan())])

    def _scan(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        end = len(self._records)
        for at in range(0, end, _SCAN_ROWS):
            yield self.take_weighted(np.arange(at, min(at + _SCAN_ROWS, end)))

    @property
    def label_type(self) -> type[np.generic]:
        """The type of the labels."""
        return np.int64 if self._classification else np.float32

    def _parse(self, records: Sequence[memoryview]) -> dict[str, np.ndarray]:
        from google.protobuf.message import DecodeError
        from tensorflow.train import Example

        found = {
            item.name: np.empty((len(records), item.length), item.type) for item in self._lists
        }
        for at, record in enumerate(records):
            try:
                named = Example.FromString(bytes(record)).features.feature
            except DecodeError as error:
                raise _unreadable(error) from error
            values = {item.name: item.values(named) for item in self._lists}
            if any(len(values[item.name]) != item.length for item in self._lists):
                counts = (f"{len(values[item.name])} {item.words}" for item in self._lists)
                expected = (f"{item.length} {item.words}" for item in self._lists)
                raise _unreadable(", ".join(counts), ", ".join(expected))
            for name, row in values.items():
                found[name][at] = row
        return found


class _List(NamedTuple):
    """A list of every record: its name, its field in tf.train.Feature, the number of values."""

    name: str
    kind: int
    length: int

    @property
    def type(self) -> type[np.generic]:
        return np.float32 if self.kind == _FLOATS else np.int64

    @property
    def words(self) -> str:
        return f"{'floats' if self.kind == _FLOATS else 'int64'} in `{self.name}`"

    def values(self, named: Mapping[str, Any]) -> Sequence[float]:
        """Return the values in the features of an Example."""
        feature = named[self.name]
        return (feature.float_list if self.kind == _FLOATS else feature.int64_list).value


class _Place(NamedTuple):
    """Where the values of a list are: [start, end) of a record, and the bytes of one value."""

    list: _List
    start: int
    end: int
    width: int


@dataclass(frozen=True)
class _Layout:
    """The places of the values in a record.

    Attributes:
        record: A record with the right bytes between the values.
        places: The lists, in the order of their bytes.
    """

    record: np.ndarray
    places: tuple[_Place, ...]

    @classmethod
    def of(cls, record: bytes, lists: Sequence[_List]) -> _Layout | None:
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
        block = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
        at = 0
        for place in (*self.places, None):
            between = slice(at, place.start if place else size)
            if (block[:, between] != self.record[between]).any():
                return None
            at = place.end if place else size
        found = {place.list.name: self._decoded(block, place) for place in self.places}
        return None if any(values is None for values in found.values()) else found

    def _decoded(self, block: np.ndarray, place: _Place) -> np.ndarray | None:
        """Return (rows, length) float32 or int64; None if a varint ends elsewhere."""
        part = np.ascontiguousarray(block[:, place.start : place.end])
        if place.list.kind == _FLOATS:
            return part.view("<f4")
        if ((part ^ self.record[place.start : place.end]) & 0x80).any():
            return None
        groups = part.reshape(len(block), place.list.length, place.width) & 0x7F
        found = np.zeros(groups.shape[:2], np.uint64)
        for at in range(place.width):
            found |= groups[:, :, at].astype(np.uint64) << np.uint64(7 * at)
        return found.view(np.int64)


def _place(record: bytes, item: _List, kind: int, start: int, end: int) -> _Place:
    """Return the place of a list; raise ValueError if its values differ in width."""
    width, rest = divmod(end - start, item.length)
    if kind != item.kind or rest or (kind == _FLOATS and width != 4) or not 1 <= width <= 10:
        raise ValueError
    if kind == _INTEGERS:
        more = np.frombuffer(record, np.uint8)[start:end].reshape(-1, width) >= 0x80
        if not more[:, :-1].all() or more[:, -1].any():
            raise ValueError
    return _Place(item, start, end, width)


def _check(labels: np.ndarray, classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            Problem(
                "a label of the dataset is not one of its classes",
                received=f"{len(wrong)} such labels, the first is {wrong[0]}",
                expected=f"whole numbers from 0 to {classes - 1}",
                fix="prepare the dataset again",
            )
        )


def _unreadable(received: object, expected: str = "a tf.train.Example") -> DataError:
    return DataError(
        Problem(
            "a record of the dataset cannot be read",
            received=received,
            expected=expected,
            fix="prepare the dataset again",
        )
    )


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
