"""Gives each text of a category a code, in the order in which the texts occur first."""

from __future__ import annotations

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import MOST_TEXTS
from kfp_tfjob.components.prepare_data.rows import Texts
from kfp_tfjob.components.prepare_data.spill import text_hash
from kfp_tfjob.trainer.text_hash import bins_of


class TooManyTextsError(Exception):
    """The column has more than MOST_TEXTS different texts."""


class Dictionary:
    """The texts of one category over the whole source, in bounded memory.

    Attributes:
        texts: The texts; the code of the first is 1.
        rows: The rows with a text.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._codes: dict[str, int] = {}
        self._hashes = np.zeros(1, np.uint64)  # by code; a gap is 0

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts in the order of their codes, which start at 1."""
        return tuple(self._codes)

    def add(self, column: Texts) -> tuple[np.ndarray, np.ndarray]:
        """Add the texts of a block.

        Returns:
            For each row the code, int32, 0 for a gap; and the hash of the text, uint64.

        Raises:
            TooManyTextsError: There are too many different ones.
        """
        before = len(self._codes)
        known = self._codes
        codes = [known.setdefault(text, len(known) + 1) for text in column.texts]
        if len(known) > MOST_TEXTS:
            raise TooManyTextsError
        new = [text_hash(text) for text in column.texts if known[text] > before]
        self._hashes = np.append(self._hashes, np.array(new, np.uint64))
        self.rows += int(np.count_nonzero(column.codes))
        found = np.array([0, *codes], np.int32)[column.codes]
        return found, self._hashes[found]

    @property
    def all_different(self) -> bool:
        """Whether no text occurs in two rows."""
        return len(self._codes) == self.rows


class Bins:
    """The bins of a column of texts.

    Args:
        bins: Their number.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins

    def add(self, column: Texts) -> tuple[np.ndarray, np.ndarray]:
        """Return for each row the code, 1 + the bin or 0 for a gap, and the hash of the text."""
        bins = bins_of([text.encode() for text in column.texts], self._bins)
        hashes = [text_hash(text) for text in column.texts]
        codes = np.array([0, *(bins + 1)], np.int32)[column.codes]
        return codes, np.array([0, *hashes], np.uint64)[column.codes]
