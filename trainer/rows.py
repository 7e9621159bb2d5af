"""The features and labels of records; each record is a `tf.train.Example`.

The records of prepare_data differ only in their values. So the offsets of the values are found
once, in the first record, and a batch takes two copies. Parsing every record takes several times
as long (benchmarks/input_pipeline.py). Records of other programs are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        dataset: The dataset, for the number of columns and the kind of label.
        records: The records of the split.
    """

    def __init__(self, dataset: Dataset, records: TFRecords) -> None:
        self._columns, self._classes = dataset.num_features, dataset.num_classes
        self._classification = dataset.task == CLASSIFICATION
        self._records = records
        first = records.take(np.arange(min(1, len(records))))
        kind = _INTEGERS if self._classification else _FLOATS
        self._layout = _Layout.of(bytes(first[0]), self._columns, kind) if first else None

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return these rows, in their order.

        Returns:
            (rows, columns) float32, and (rows,) the labels: int64 classes, or float32 values.

        Raises:
            DataError: A record is damaged or not of this dataset, or a label is not a class.
        """
        records = self._records.take(rows)
        found = self._layout.values(records) if self._layout else None
        features, labels = found or self._parse(records)
        if self._classification:
            _check(labels, self._classes)
        return features, labels

    def labels(self) -> np.ndarray:
        """Return (rows,) the labels of the whole split.

        Raises:
            DataError: The same as `take`.
        """
        end = len(self._records)
        parts = (
            self.take(np.arange(at, min(at + _SCAN_ROWS, end)))[1]
            for at in range(0, end, _SCAN_ROWS)
        )
        return np.concatenate([np.empty(0, self.label_type), *parts])

    @property
    def label_type(self) -> type[np.generic]:
        """The type of the labels."""
        return np.int64 if self._classification else np.float32

    def _parse(self, records: Sequence[memoryview]) -> tuple[np.ndarray, np.ndarray]:
        from google.protobuf.message import DecodeError
        from tensorflow.train import Example

        features = np.empty((len(records), self._columns), np.float32)
        labels = np.empty(len(records), self.label_type)
        for at, record in enumerate(records):
            try:
                named = Example.FromString(bytes(record)).features.feature
            except DecodeError as error:
                raise _unreadable(error) from error
            values, label = named["features"].float_list.value, named["label"]
            kind = label.int64_list if self._classification else label.float_list
            if len(values) != self._columns or len(kind.value) != 1:
                numbers = "int64" if self._classification else "float"
                raise _unreadable(
                    f"{len(values)} floats in `features`, {len(kind.value)} {numbers} in `label`",
                    f"{self._columns} floats in `features`, 1 {numbers} in `label`",
                )
            features[at], labels[at] = values, kind.value[0]
        return features, labels


@dataclass(frozen=True)
class _Layout:
    """The places of the values in a record.

    Attributes:
        record: A record with the right bytes between the values.
        features: [start, end) of the packed floats.
        label: [start, end) of the label.
        is_class: Whether the label is a varint; else it is a float.
    """

    record: np.ndarray
    features: tuple[int, int]
    label: tuple[int, int]
    is_class: bool

    @classmethod
    def of(cls, record: bytes, columns: int, label_kind: int) -> _Layout | None:
        """Return the layout of a record; None if this class cannot handle it."""
        try:
            places = dict(_places(record))
            kind, *features = places["features"]
            found_kind, *label = places["label"]
        except (IndexError, KeyError, ValueError):
            return None
        if (kind, found_kind) != (_FLOATS, label_kind) or features[1] - features[0] != 4 * columns:
            return None
        is_class = label_kind == _INTEGERS
        # A varint ends at its first byte below 128.
        ends = [byte < 0x80 for byte in record[slice(*label)]]
        if ends != [False] * (len(ends) - 1) + [True] if is_class else len(ends) != 4:
            return None
        return cls(np.frombuffer(record, np.uint8), tuple(features), tuple(label), is_class)

    def values(self, records: Sequence[memoryview]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return features and labels; None if a record has a different layout."""
        size = len(self.record)
        if any(len(record) != size for record in records):
            return None
        block = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), size)
        first, second = sorted((self.features, self.label))
        for part in (slice(0, first[0]), slice(first[1], second[0]), slice(second[1], size)):
            if (block[:, part] != self.record[part]).any():
                return None
        label = block[:, slice(*self.label)]
        if self.is_class:
            groups, more = label & 0x7F, label & 0x80
            if (more != self.record[slice(*self.label)] & 0x80).any():
                return None
            shifts = 7 * np.arange(label.shape[1], dtype=np.uint64)
            labels = (groups.astype(np.uint64) << shifts).sum(1, dtype=np.uint64).view(np.int64)
        else:
            labels = np.ascontiguousarray(label).view("<f4")[:, 0]
        return np.ascontiguousarray(block[:, slice(*self.features)]).view("<f4"), labels


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
