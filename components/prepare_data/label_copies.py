"""Finds columns that alone tell the label: each value has one label, and each label one value.

Such a column was usually written together with the label, and is not known when a model is asked.
"""

from __future__ import annotations

import numpy as np

from kfp_tfjob.components.prepare_data.vocabulary import Label

_MOST_COLUMNS = 1000  # that are compared; in wider tables with few rows it would take too long


class LabelCopies:
    """The columns that are still copies after all rows so far.

    Args:
        names: The columns.
        label: The label.
    """

    def __init__(self, names: tuple[str, ...], label: Label) -> None:
        self._classes = None if label.classes is None else len(label.classes)
        self._labels_of: dict[str, dict[float, float]] = {
            name: {} for name in names[:_MOST_COLUMNS]
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are copies."""
        least = 2 if self._classes is None else self._classes
        return tuple(name for name, found in self._labels_of.items() if len(found) >= least)

    def add(self, columns: dict[str, np.ndarray], labels: np.ndarray) -> None:
        """Add rows of train.

        Args:
            columns: Values by name; arrays of shape [rows]. NaN is one value.
            labels: Class indices or numbers, of shape [rows].
        """
        if not len(labels):
            return
        for name in list(self._labels_of):
            if not self._add(self._labels_of[name], columns[name], labels):
                del self._labels_of[name]

    def _add(self, known: dict[float, float], values: np.ndarray, labels: np.ndarray) -> bool:
        """Return whether the column is still a copy."""
        if self._classes is None:
            known.update(zip(values[:2].tolist(), labels[:2].tolist(), strict=True))
            return bool((values == labels).all())
        found, first, places = np.unique(values, return_index=True, return_inverse=True)
        if len(found) > self._classes or (labels[first][places] != labels).any():
            return False
        for value, label in zip(found.tolist(), labels[first].tolist(), strict=True):
            key = "gap" if value != value else value
            if known.setdefault(key, label) != label:
                return False
        return len(known) <= self._classes
