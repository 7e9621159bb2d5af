"""Counts rows of validation and test whose features are also in train.

Only splits that do not come from the hash of the features can have such rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kfp_tfjob.components.prepare_data.distinct import among
from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.statistics import SPLITS

_BINS = 64
_KIND = np.dtype([("hash", "<u8"), ("split", "u1")])


class Writer:
    """The hashes of the rows of one part with their splits: 9 bytes for each row."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def add(self, hashes: np.ndarray, splits: np.ndarray) -> None:
        """Add rows; both arrays have the shape [rows]."""
        rows = np.empty(len(hashes), _KIND)
        rows["hash"], rows["split"] = hashes, splits
        self._rows.append(rows)

    def to_bytes(self) -> bytes:
        """Return the ends of the bins, which are the first bits of the hashes, then the rows."""
        rows = np.concatenate([np.empty(0, _KIND), *self._rows])
        bins = (rows["hash"] >> np.uint64(58)).astype(np.int64)
        rows = rows[np.argsort(bins, kind="stable")]
        ends = np.cumsum(np.bincount(bins, minlength=_BINS)).astype("<i8")
        return ends.tobytes() + rows.tobytes()


def count(exchange: Exchange, names: Sequence[str]) -> dict[str, int]:
    """Return the rows of validation and of test that are also in train.

    Args:
        exchange: Where the objects of the parts are.
        names: Their names.
    """
    head = 8 * _BINS
    ends = [np.frombuffer(exchange.read(name, 0, head), "<i8") for name in names]
    found = np.zeros(len(SPLITS), np.int64)
    for i in range(_BINS):
        pieces = [np.empty(0, _KIND)]
        for name, places in zip(names, ends, strict=True):
            start, end = (int(places[i - 1]) if i else 0), int(places[i])
            at = (head + start * _KIND.itemsize, head + end * _KIND.itemsize)
            pieces.append(np.frombuffer(exchange.read(name, *at), _KIND))
        rows = np.concatenate(pieces)
        train = np.sort(rows["hash"][rows["split"] == 0])
        others = rows[rows["split"] > 0]
        shared = others["split"][among(others["hash"], train)]
        found += np.bincount(shared, minlength=len(SPLITS))
    return dict(zip(SPLITS[1:], found[1:].tolist(), strict=True))
