"""The features and labels of records; each record is a `tf.train.Example`.

The values of records that prepare_data wrote are taken from their places (record_layout.py).
Records of other programs are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kfp_tfjob.features.record_layout import FLOATS, INTEGERS, Layout, ValueList
from kfp_tfjob.features.records import TFRecords
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset

_SCAN_ROWS = 8192


class Rows:
    """The rows of a split.

    Args:
        dataset: The dataset, for its columns and the kind of label.
        records: The records of the split.
    """

    def __init__(self, dataset: Dataset, records: TFRecords) -> None:
        assert dataset.coding is not None  # pictures have rows of their own
        self._classes, self._coding = dataset.num_classes, dataset.coding
        self._classification = dataset.task == CLASSIFICATION
        self._records = records
        floats, codes, dates = self._coding.lengths
        self._lists = [
            item
            for item in (
                ValueList("features", FLOATS, floats),
                ValueList("codes", INTEGERS, codes),
                ValueList("dates", INTEGERS, dates),
            )
            if item.length
        ]
        self._lists.append(ValueList("label", INTEGERS if self._classification else FLOATS, 1))
        self._is_weighted = dataset.row_weights is not None
        if self._is_weighted:
            self._lists.append(ValueList("weight", FLOATS, 1))
        first = records.take(np.arange(min(1, len(records))))
        self._layout = Layout.of(bytes(first[0]), self._lists) if first else None

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
        parts = (weights for _, _, weights in self._scan() if weights is not None)
        return np.concatenate([np.empty(0, np.float32), *parts])

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


def _check(labels: np.ndarray, classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise DataError(
            Problem(
                "a label in the dataset is not one of its classes",
                received=f"{len(wrong)} such labels, the first is {wrong[0]}",
                expected=f"whole numbers from 0 to {classes - 1}",
                fix="prepare the dataset again",
            )
        )


def _unreadable(received: object, expected: str = "a tf.train.Example") -> DataError:
    return DataError(
        Problem(
            "a record in the dataset cannot be read",
            received=received,
            expected=expected,
            fix="prepare the dataset again",
        )
    )
