"""Counts rows whose features other rows have too: duplicates, conflicts, and rows also in train.

Each part writes the hashes of its rows into a file of its own; once all parts are read, equal
hashes are counted bin by bin. Called by tasks.py for each part, and by scan.py at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kfp_tfjob.features.statistics import SPLITS

from .bucket_folder import BucketFolder

_BINS = 64  # by the first bits of the hashes: the rows of one bin are in memory at once
_KIND = np.dtype([("hash", "<u8"), ("label", "<i4"), ("split", "u1")])


class OverlapWriter:
    """Keeps which rows of validation and test have features that are also in train.

    Only splits that do not come from the hash of the features can have such rows. These are the
    hashes of the rows of one part with their labels and splits: 13 bytes for each row.
    """

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def add(self, hashes: np.ndarray, labels: np.ndarray, splits: np.ndarray) -> None:
        """Add rows, with the codes of their labels."""
        rows = np.empty(len(hashes), _KIND)
        rows["hash"], rows["label"], rows["split"] = hashes, labels, splits
        self._rows.append(rows)

    def to_bytes(self) -> bytes:
        """Return the ends of the bins, which are the first bits of the hashes, then the rows."""
        rows = np.concatenate([np.empty(0, _KIND), *self._rows])
        bins = (rows["hash"] >> np.uint64(58)).astype(np.int64)
        rows = rows[np.argsort(bins, kind="stable")]
        ends = np.cumsum(np.bincount(bins, minlength=_BINS)).astype("<i8")
        return ends.tobytes() + rows.tobytes()


@dataclass(frozen=True)
class Overlap:
    """Rows with features of other rows, in any split.

    Attributes:
        also_in_train: The rows of validation and of test that are also in train.
        duplicates: Rows with the features of an earlier row.
        conflicts: Such rows with another label, if all parts have the same codes of labels.
    """

    also_in_train: dict[str, int]
    duplicates: int
    conflicts: int


def count_overlap(folder: BucketFolder, names: Sequence[str]) -> Overlap:
    """Return the rows with features of other rows, from the parts' files."""
    head = 8 * _BINS
    duplicates = conflicts = 0
    ends = [np.frombuffer(folder.read(name, 0, head), "<i8") for name in names]
    overlap = np.zeros(len(SPLITS), np.int64)
    for i in range(_BINS):
        pieces = [np.empty(0, _KIND)]
        for name, places in zip(names, ends, strict=True):
            start, end = (int(places[i - 1]) if i else 0), int(places[i])
            first_byte, end_byte = head + start * _KIND.itemsize, head + end * _KIND.itemsize
            pieces.append(np.frombuffer(folder.read(name, first_byte, end_byte), _KIND))
        rows = np.concatenate(pieces)
        train, tested = rows["hash"][rows["split"] == 0], rows[rows["split"] > 0]
        shared = tested["split"][np.isin(tested["hash"], train)]
        overlap += np.bincount(shared, minlength=len(SPLITS))
        rows = rows[np.lexsort((rows["label"], rows["hash"]))]
        same = rows["hash"][1:] == rows["hash"][:-1]
        duplicates += int(same.sum())
        conflicts += int((same & (rows["label"][1:] != rows["label"][:-1])).sum())
    also_in_train: dict[str, int] = dict(zip(SPLITS[1:], overlap[1:].tolist(), strict=True))
    return Overlap(also_in_train, duplicates, conflicts)
