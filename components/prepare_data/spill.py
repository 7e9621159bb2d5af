"""Divides rows by hash on local disk, to sort a whole dataset in bounded memory.

The hash of a row is the keyed BLAKE2b of its float32 features, 64 bits. It determines the split and
the order: train has the rows with the lowest hashes, and so on. So a row never changes its split
when others are added, equal rows stay together, and the order of the input has no effect.

Memory: the rows are in 256 files by the first 8 bits of the hash. One file at a time is sorted in
memory, which takes about three times its size: 64 GiB of float32 values need about 1 GiB. All
copies of a row are in one file, so a row that makes up a large part of the data exceeds this limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

_BINS = 256


def row_hashes(features: np.ndarray, salt: str) -> np.ndarray:
    """Return the hash of each row.

    Args:
        features: float32 of shape [rows, features], finite.
        salt: The key of the hash, at most 64 bytes.

    Returns:
        uint64 of shape [rows]; -0.0 counts as 0.0.
    """
    data = (features.astype("<f4", copy=False) + np.float32(0)).tobytes()
    width, key = 4 * features.shape[1], salt.encode()
    digests = [
        blake2b(data[at : at + width], digest_size=8, key=key).digest()
        for at in range(0, len(data), width)
    ]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def split_of(hashes: np.ndarray, fractions: list[float]) -> np.ndarray:
    """Return the number of the split of each hash.

    Args:
        hashes: uint64 of shape [rows].
        fractions: Shares that sum to 1.

    Returns:
        int64 of shape [rows].
    """
    limits = [int(sum(fractions[: i + 1]) * 2**64) for i in range(len(fractions) - 1)]
    return np.searchsorted(np.array(limits, np.uint64), hashes, side="right")


class Spill:
    """Rows in files, divided by hash.

    Args:
        folder: An empty folder on local disk.
        features: Values in a row.
    """

    def __init__(self, folder: Path, features: int) -> None:
        self.kind = np.dtype(
            [("hash", "<u8"), ("code", "<i4"), ("number", "<f4"), ("features", "<f4", (features,))]
        )
        self._paths = [folder / f"{i:03d}" for i in range(_BINS)]
        self._files = [open(path, "wb", buffering=1 << 16) for path in self._paths]

    def add(
        self, hashes: np.ndarray, codes: np.ndarray, numbers: np.ndarray, features: np.ndarray
    ) -> None:
        """Add rows; every array has the shape [rows], `features` [rows, features]."""
        bins = (hashes >> np.uint64(56)).astype(np.int64)
        order = np.argsort(bins, kind="stable")
        rows = np.empty(len(hashes), self.kind)
        rows["hash"], rows["code"], rows["number"] = hashes[order], codes[order], numbers[order]
        rows["features"] = features[order] + np.float32(0)  # -0.0 is 0.0
        ends = np.cumsum(np.bincount(bins, minlength=_BINS))
        start = 0
        for file, end in zip(self._files, ends.tolist(), strict=True):
            if end > start:
                file.write(rows[start:end].tobytes())
            start = end

    def close(self) -> None:
        """Finish writing."""
        for file in self._files:
            file.close()

    def bins(self) -> Iterator[np.ndarray]:
        """Yield the rows of each file and delete it; rows within a file are not sorted by hash."""
        for path in self._paths:
            rows = np.fromfile(path, self.kind)
            path.unlink()
            if len(rows):
                yield rows
