"""Gives every row a hash, which decides its split and its position.

The hash of a row is the keyed BLAKE2b of its values, 64 bits: of its float32 numbers, then the
BLAKE2b of each of its strings, 64 bits, then its dates. It determines split and order: train has
the rows with the lowest hashes, and so on. So a row never changes its split when others are added,
equal rows stay together, and the order of the input has no effect.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import iter_unpack

import numpy as np

_NOTHING = np.empty((0, 0), np.int64)


def row_hashes(
    features: np.ndarray,
    salt: str,
    texts: np.ndarray = _NOTHING,
    dates: np.ndarray = _NOTHING,
) -> np.ndarray:
    """Return the hash of each row.

    Args:
        features: float32 of shape [rows, features], finite, or NaN for a missing value.
        salt: The key of the hash, at most 64 bytes.
        texts: uint64 of shape [rows, texts], the `text_hash` of each text, 0 for a missing value.
        dates: int64 of shape [rows, dates].

    Returns:
        uint64 of shape [rows]; -0.0 counts as 0.0, and every NaN as the same one.
    """
    numbers = features.astype("<f4", copy=False) + np.float32(0)
    gaps = np.isnan(numbers)
    if gaps.any():
        numbers[gaps] = np.float32(np.nan)
    parts = [numbers, texts.astype(">u8"), dates.astype("<i8")]
    views = [np.ascontiguousarray(part).view(np.uint8) for part in parts if part.shape[1]]
    whole = views[0] if len(views) == 1 else np.hstack(views)
    data, width = _bytes_of(whole), whole.shape[1]
    empty = blake2b(digest_size=8, key=salt.encode()).copy  # a copy costs less than a new one
    digests = []
    for (row,) in iter_unpack(f"{width}s", data):
        digest = empty()
        digest.update(row)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def _bytes_of(array: np.ndarray) -> memoryview | bytes:
    return memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else b""


def text_hash(text: str) -> int:
    """Return the BLAKE2b of a string, 64 bits, read as a big-endian number."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def split_of(hashes: np.ndarray, fractions: list[float]) -> np.ndarray:
    """Return the number of the split of each hash, for shares that sum to 1."""
    return np.searchsorted(np.array(limits_of(fractions), np.uint64), hashes, side="right")


def limits_of(fractions: list[float]) -> list[int]:
    """Return the first hash of each split but the first."""
    return [int(sum(fractions[: i + 1]) * 2**64) for i in range(len(fractions) - 1)]
