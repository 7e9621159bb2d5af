"""Reads the features and labels of a table's records, whose layout is in record_layout.py.

A step takes its rows from memory-mapped shards as one block of bytes, without parsing a record.
Called by `inputs.py` for a dataset of rows; `picture_rows.py` does the same for images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kfp_tfjob.features.record_layout import DamagedRecordError, Layout
from kfp_tfjob.features.records import TFRecords, prepare_again
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset

_SCAN_ROWS = 8192  # rows in memory at a time while all labels or weights are read


class Rows:
    """A split's rows.

    Args:
        dataset: The dataset, for its columns and the kind of label.
        records: The split's records.
    """

    def __init__(self, dataset: Dataset, records: TFRecords) -> None:
        assert dataset.coding is not None  # images have rows of their own
        self._classes, self._coding = dataset.num_classes, dataset.coding
        self._classification = dataset.task == CLASSIFICATION
        self._records = records
        self._is_weighted = dataset.row_weights is not None
        classes = self._classes if self._classification else None
        self._layout = Layout.of(self._coding.lengths, classes, self._is_weighted)

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
        fields = self._values(self._records.take(rows))
        labels = fields["label"][:, 0]
        if self._classification:
            self._check_classes(labels)
        weights = fields["weight"][:, 0] if self._is_weighted else None
        no_columns = np.empty((len(rows), 0), np.int64)
        floats = fields.get("features", no_columns.astype(np.float32))
        codes, dates = fields.get("codes", no_columns), fields.get("dates", no_columns)
        with self._translate_errors():
            packed = self._coding.pack(floats, codes, dates)
        return packed, labels, weights

    def labels(self) -> np.ndarray:
        """Return the (rows,) labels of the whole split.

        Raises:
            DataError: The same as `take`.
        """
        return np.concatenate([np.empty(0, self.label_type), *(part[1] for part in self._scan())])

    def weights(self) -> np.ndarray | None:
        """Return the (rows,) float32 weights of the whole split; None if all rows count the same.

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

    def _values(self, records: list[memoryview]) -> dict[str, np.ndarray]:
        with self._translate_errors():
            return self._layout.decode(records)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn a DamagedRecordError into a DataError: a record does not match the schema."""
        try:
            yield
        except DamagedRecordError as error:
            raise DataError(
                Problem(
                    "a record in the dataset cannot be read",
                    received=error,
                    expected="the columns and codes of schema.json",
                    fix=prepare_again(self._records.dataset),
                )
            ) from error

    def _check_classes(self, labels: np.ndarray) -> None:
        invalid = labels[(labels < 0) | (labels >= self._classes)]
        if len(invalid):
            raise DataError(
                Problem(
                    "a label in the dataset is not one of its classes",
                    received=f"{len(invalid)} such labels, the first is {invalid[0]}",
                    expected=f"whole numbers from 0 to {self._classes - 1}",
                    fix=prepare_again(self._records.dataset),
                )
            )
