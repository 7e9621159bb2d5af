"""Counts rows of validation and test whose features are also in train.

Only splits that do not come from the hash of the features can have such rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kfp_tfjob.components.prepare_data.statistics import SPLITS

_BINS = 64
_KIND = np.dtype([("hash", "<u8"), ("split", "u1")])


class Crossing:
    """The hashes of all rows with their splits, on local disk: 9 bytes for each row.

    Args:
        folder: A folder on local disk.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"{i:02d}.splits" for i in range(_BINS)]
        self._files = [open(path, "wb", buffering=1 << 16) for path in self._paths]

    def add(self, hashes: np.ndarray, splits: np.ndarray) -> None:
        """Add rows; both arrays have the shape [rows]."""
        rows = np.empty(len(hashes), _KIND)
        rows["hash"], rows["split"] = hashes, splits
        bins = (hashes >> np.uint64(58)).astype(np.int64)
        for i in np.unique(bins).tolist():
            self._files[i].write(rows[bins == i].tobytes())

    def close(self) -> None:
        """Finish writing."""
        for file in self._files:
            file.close()

    def count(self) -> dict[str, int]:
        """Return the rows of validation and of test that are also in train."""
        found = np.zeros(len(SPLITS), np.int64)
        for path in self._paths:
            rows = np.fromfile(path, _KIND)
            train = np.unique(rows["hash"][rows["split"] == 0])
            others = rows[rows["split"] > 0]
            shared = others["split"][np.isin(others["hash"], train)]
            found += np.bincount(shared, minlength=len(SPLITS))
        return dict(zip(SPLITS[1:], found[1:].tolist(), strict=True))
