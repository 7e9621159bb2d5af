"""Finds columns that alone tell the label: each value has one label, and each label one value.

Such a column was usually written together with the label, and is not known when a model is asked.
"""

from __future__ import annotations

from typing import Any

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

    def merge(self, later: LabelCopies) -> None:
        """Add the rows that follow."""
        for name in list(self._labels_of):
            others = later._labels_of.get(name)
            if others is None or not self._joined(self._labels_of[name], others):
                del self._labels_of[name]

    def to_plain(self) -> list[Any]:
        """Return what `restore` needs, as JSON values."""
        return [[name, list(found.items())] for name, found in self._labels_of.items()]

    def restore(self, plain: list[Any]) -> None:
        """Become what `to_plain` has written."""
        self._labels_of = {name: {value: label for value, label in found} for name, found in plain}

    def _joined(self, known: dict[float, float], others: dict[float, float]) -> bool:
        """Return whether the column is still a copy."""
        if self._classes is None:
            known.update(others)
            return True
        return (
            all(known.setdefault(value, label) == label for value, label in others.items())
            and len(known) <= self._classes
        )

    def _add(self, known: dict[Any, float], values: np.ndarray, labels: np.ndarray) -> bool:
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
