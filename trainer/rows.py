"""Reads the packed rows and the labels of a table, which encoded_rows.py has written.

A step copies its rows from a file that is mapped into memory. Called by `inputs.py` for a table;
`image_rows.py` does the same for images.
"""

from __future__ import annotations

import numpy as np

from .dataset import Dataset
from .encoded_rows import features_of, labels_of, weights_of


class Rows:
    """A split's rows.

    Args:
        dataset: The dataset.
        split: The split.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        folder = dataset.encoded
        self._labels = np.load(labels_of(folder, split))
        self._weights = np.load(weights_of(folder, split)) if dataset.row_weights else None
        shape = (len(self._labels), dataset.num_features)
        self._features = np.empty(shape, np.float32)
        if len(self):
            # Without the class memmap, whose slices are slower.
            mapped = np.memmap(features_of(folder, split), np.float32, "r", shape=shape)
            self._features = np.asarray(mapped)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the features and labels of these rows, as `take_weighted` does."""
        return self.take_weighted(rows)[:2]

    def take_weighted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return these rows, in their order.

        Returns:
            (rows, packed columns) float32; (rows,) the labels: int64 classes, or float32 values;
            and (rows,) float32 weights as in the table, None if all rows count the same.
        """
        weights = None if self._weights is None else self._weights[rows]
        return self._features[rows], self._labels[rows], weights

    @property
    def labels(self) -> np.ndarray:
        """The (rows,) labels of the whole split."""
        return self._labels

    @property
    def weights(self) -> np.ndarray | None:
        """The (rows,) float32 weights of the whole split; None if all rows count the same."""
        return self._weights

    @property
    def label_type(self) -> type[np.generic]:
        """The type of the labels."""
        return self._labels.dtype.type
