"""Divides rows by hash on local disk, to sort a whole dataset in bounded memory.

The hash of a row is the keyed BLAKE2b of its values, 64 bits: of its float32 numbers, then the
BLAKE2b of each of its texts, 64 bits, then its dates. It determines the split and the order: train
has the rows with the lowest hashes, and so on. So a row never changes its split when others are
added, equal rows stay together, and the order of the input has no effect.

Memory: the rows are in 256 files by the first 8 bits of the hash. One file at a time is sorted in
memory, which takes about three times its size: 64 GiB of rows need about 1 GiB. All
copies of a row are in one file, so a row that makes up a large part of the data exceeds this limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

_BINS = 256


def row_hashes(
    features: np.ndarray,
    salt: str,
    texts: np.ndarray | None = None,
    dates: np.ndarray | None = None,
) -> np.ndarray:
    """Return the hash of each row.

    Args:
        features: float32 of shape [rows, features], finite, or NaN for a gap.
        salt: The key of the hash, at most 64 bytes.
        texts: uint64 of shape [rows, texts], the `text_hash` of each text, 0 for a gap.
        dates: int64 of shape [rows, dates].

    Returns:
        uint64 of shape [rows]; -0.0 counts as 0.0, and every NaN as the same one.
    """
    numbers = features.astype("<f4", copy=False) + np.float32(0)
    if texts is None and dates is None:
        data, width = numbers.tobytes(), 4 * features.shape[1]
    else:
        numbers[np.isnan(numbers)] = np.float32(np.nan)
        parts = [numbers, texts.astype(">u8"), dates.astype("<i8")]
        views = [np.ascontiguousarray(part).view(np.uint8) for part in parts if part.shape[1]]
        whole = np.hstack(views)
        data, width = whole.tobytes(), whole.shape[1]
    key = salt.encode()
    digests = [
        blake2b(data[at : at + width], digest_size=8, key=key).digest()
        for at in range(0, len(data), width)
    ]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def text_hash(text: str) -> int:
    """Return the BLAKE2b of a text, 64 bits, read as a big-endian number."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def split_of(hashes: np.ndarray, fractions: list[float]) -> np.ndarray:
    """Return the number of the split of each hash.

    Args:
        hashes: uint64 of shape [rows].
        fractions: Shares that sum to 1.

    Returns:
        int64 of shape [rows].
    """
    return np.searchsorted(np.array(limits_of(fractions), np.uint64), hashes, side="right")


def limits_of(fractions: list[float]) -> list[int]:
    """Return the first hash of each split but the first."""
    return [int(sum(fractions[: i + 1]) * 2**64) for i in range(len(fractions) - 1)]


class Spill:
    """Rows in files, divided by hash.

    Args:
        folder: An empty folder on local disk.
        features: Numbers in a row.
        codes: Codes in a row.
        dates: Dates in a row.
    """

    def __init__(self, folder: Path, features: int, codes: int = 0, dates: int = 0) -> None:
        self.kind = np.dtype(
            [
                ("hash", "<u8"),
                ("code", "<i4"),
                ("number", "<f4"),
                ("features", "<f4", (features,)),
                ("codes", "<i4", (codes,)),
                ("dates", "<i8", (dates,)),
            ]
        )
        self._paths = [folder / f"{i:03d}" for i in range(_BINS)]
        self._files = [open(path, "wb", buffering=1 << 16) for path in self._paths]

    def add(
        self,
        hashes: np.ndarray,
        labels: np.ndarray,
        numbers: np.ndarray,
        features: np.ndarray,
        codes: np.ndarray | None = None,
        dates: np.ndarray | None = None,
    ) -> None:
        """Add rows.

        Args:
            hashes: Of shape [rows].
            labels: The codes of the labels, of shape [rows].
            numbers: The labels as numbers, of shape [rows].
            features: Of shape [rows, features].
            codes: Of shape [rows, codes]; None if there are none.
            dates: Of shape [rows, dates]; None if there are none.
        """
        bins = (hashes >> np.uint64(56)).astype(np.int64)
        order = np.argsort(bins, kind="stable")
        rows = np.empty(len(hashes), self.kind)
        rows["hash"], rows["code"], rows["number"] = hashes[order], labels[order], numbers[order]
        rows["features"] = features[order] + np.float32(0)  # -0.0 is 0.0
        if codes is not None:
            rows["codes"] = codes[order]
        if dates is not None:
            rows["dates"] = dates[order]
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

    def bins(self, keep: bool = False) -> Iterator[np.ndarray]:
        """Yield the rows of each file; rows within a file are not sorted by hash.

        Args:
            keep: Do not delete the files, so that they can be read again.
        """
        for path in self._paths:
            rows = np.fromfile(path, self.kind)
            if not keep:
                path.unlink()
            if len(rows):
                yield rows
