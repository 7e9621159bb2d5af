"""Reads the images and labels of a dataset, which encoded_rows.py has copied from its shards.

A step takes the JPEG or PNG files of its rows from a file that is mapped into memory, and decodes
them. Called by `inputs.py` for a dataset of images; `rows.py` does the same for tables.
"""

from __future__ import annotations

import mmap

import numpy as np

from .dataset import Dataset
from .encoded_rows import contents_of, labels_of, offsets_of


class ImageRows:
    """A split's rows.

    Args:
        dataset: The dataset.
        split: The split.
    """

    label_type = np.int64

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._labels = np.load(labels_of(dataset.encoded, split))
        self._offsets = np.load(offsets_of(dataset.encoded, split))
        self._contents = memoryview(b"")
        if len(self):
            with open(contents_of(dataset.encoded, split), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._contents = memoryview(mapped)

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return these rows, in their order.

        Returns:
            (rows,) bytes of JPEG or PNG files, and (rows,) int64 classes.
        """
        contents = np.empty(len(rows), object)
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            contents[row] = bytes(self._contents[start:end])
        return contents, self._labels[rows]

    def take_weighted(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
        """Return these rows as `take` does, and None, because images do not have weights."""
        return *self.take(rows), None

    @property
    def labels(self) -> np.ndarray:
        """The (rows,) labels of the whole split."""
        return self._labels

    @property
    def weights(self) -> None:
        """None, because images do not have weights."""
        return
