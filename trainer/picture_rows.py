"""The images and labels of records; each record is a `tf.train.Example`.

Shards keep the JPEG or PNG files, which are far smaller than their pixels; each step decodes its
own. Called by `inputs.py` for a dataset of images; `rows.py` does the same for tables.
"""

from __future__ import annotations

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.records import TFRecords, prepare_again
from kfp_tfjob.options.image_options import PICTURE

from .dataset import Dataset

_SCAN_ROWS = 1024  # images in memory at a time while all labels are read


class PictureRows:
    """A split's rows.

    Args:
        dataset: The dataset.
        split: The split.

    Raises:
        DataError: A shard is damaged, or the number of rows differs from schema.json.
    """

    label_type = np.int64

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._classes = dataset.num_classes
        self._records = TFRecords(dataset.shards(split), dataset.uri)
        if len(self) != (expected := dataset.rows.get(split, 0)):
            raise DataError(
                Problem(
                    f"the {split} split is incomplete",
                    received=f"{len(self)} rows",
                    expected=f"{expected} rows (schema.json)",
                    fix=prepare_again(dataset.uri),
                )
            )

    def __len__(self) -> int:
        return len(self._records)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return these rows, in their order.

        Returns:
            (rows,) bytes of JPEG or PNG files, and (rows,) int64 classes.

        Raises:
            DataError: A record is damaged or not of this dataset.
        """
        from google.protobuf.message import DecodeError
        from tensorflow.train import Example

        contents = np.empty(len(rows), object)
        labels = np.empty(len(rows), np.int64)
        expected = "a tf.train.Example with a picture and a label"
        for row, record in enumerate(self._records.take(rows)):
            try:
                named = Example.FromString(bytes(record)).features.feature
            except DecodeError as error:
                raise self._wrong(error, expected) from error
            pictures, classes = named[PICTURE].bytes_list.value, named["label"].int64_list.value
            if (len(pictures), len(classes)) != (1, 1):
                received = f"{len(pictures)} pictures and {len(classes)} labels"
                raise self._wrong(received, expected)
            contents[row], labels[row] = pictures[0], classes[0]
        if len(rows) and not 0 <= labels.min() <= labels.max() < self._classes:
            expected = f"whole numbers from 0 to {self._classes - 1}"
            raise self._wrong(f"labels from {labels.min()} to {labels.max()}", expected)
        return contents, labels

    def take_weighted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
        """Return these rows as `take` does, and None, because images do not have weights."""
        return *self.take(rows), None

    @property
    def labels(self) -> np.ndarray:
        """The (rows,) labels of the whole split, which are read for that.

        Raises:
            DataError: The same as `take`.
        """
        end = len(self._records)
        parts = (
            self.take(np.arange(start, min(start + _SCAN_ROWS, end)))[1]
            for start in range(0, end, _SCAN_ROWS)
        )
        return np.concatenate([np.empty(0, self.label_type), *parts])

    @property
    def weights(self) -> None:
        """None, because images do not have weights."""
        return

    def _wrong(self, received: object, expected: str) -> DataError:
        return DataError(
            Problem(
                "a record in the dataset cannot be read",
                received=received,
                expected=expected,
                fix=prepare_again(self._records.dataset),
            )
        )
