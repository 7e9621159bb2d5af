"""Gives every row a hash of 64 bits, which decides its split and its position.

A row never changes its split when others are added, equal rows stay together, and the order of the
input does not matter: train gets the rows with the lowest hashes, and so on.

The hash is computed for whole columns, in the order of the table. It begins as the BLAKE2b of
nothing, with the salt as its key. Then each column's value, as a word of 64 bits, is mixed into it:

    hash = fmix64(hash ^ word)

- The word of a number is the bits of its float32: -0.0 counts as 0.0, and a missing value is the
  NaN 0x7fc00000. float32 is what the model gets, so rows that are equal for it are equal here.
- The word of a date is its microseconds since 1970 in UTC; a missing date is -2**63.
- The word of a string or of an image is the BLAKE2b of its bytes; a missing string is 0.

fmix64 is the last step of MurmurHash3: each bit of its input changes about half of its output, and
no two inputs have the same output, so rows that differ in one column never have the same hash. A
hash of a whole row, such as BLAKE2b, would need a loop over the rows.

Called by tasks.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kfp_tfjob.features.string_hashes import bytes_hash

# Raise it when rows get other hashes. It is part of schema_digest, because a champion of an earlier
# version would otherwise be evaluated on rows that it was trained on.
ROW_HASH_REVISION = 2
# The shifts and factors of fmix64 (Appleby, MurmurHash3, 2011).
_ROUNDS = ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53))
_LAST_SHIFT = np.uint64(33)
_MISSING_NUMBER = np.uint32(0x7FC00000)


def row_hashes(columns: Iterable[np.ndarray], rows: int, salt: str) -> np.ndarray:
    """Return the hash of each row: uint64 of shape [rows].

    Args:
        columns: The words of each column, in the order of the table: uint64 of shape [rows].
        rows: The number of rows.
        salt: The key of the hash, at most 64 bytes.
    """
    hashes = np.full(rows, bytes_hash(b"", salt), np.uint64)
    shifted = np.empty_like(hashes)
    for words in columns:
        np.bitwise_xor(hashes, words, out=hashes)
        for shift, factor in _ROUNDS:
            np.right_shift(hashes, np.uint64(shift), out=shifted)
            np.bitwise_xor(hashes, shifted, out=hashes)
            np.multiply(hashes, np.uint64(factor), out=hashes)
        np.right_shift(hashes, _LAST_SHIFT, out=shifted)
        np.bitwise_xor(hashes, shifted, out=hashes)
    return hashes


def number_words(numbers: np.ndarray) -> np.ndarray:
    """Return the words of float32 numbers, NaN if missing: uint32 of the same shape."""
    numbers = numbers.astype(np.float32, copy=False) + np.float32(0)  # -0.0 becomes 0.0
    words = numbers.view(np.uint32)
    gaps = np.isnan(numbers)
    if gaps.any():
        words[gaps] = _MISSING_NUMBER
    return words


def split_of(hashes: np.ndarray, fractions: list[float]) -> np.ndarray:
    """Return each hash's split number, for fractions that sum to 1."""
    return np.searchsorted(np.array(limits_of(fractions), np.uint64), hashes, side="right")


def limits_of(fractions: list[float]) -> list[int]:
    """Return the first hash of each split but the first."""
    return [int(sum(fractions[: i + 1]) * 2**64) for i in range(len(fractions) - 1)]


def scaled(hashes: np.ndarray, width: int) -> np.ndarray:
    """Return hashes * width / 2**64, rounded down, for a width below 2**64: uint64 of shape [rows].

    The product has 128 bits, so it is added up from products of 32 bits.
    """
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    high_width, low_width = np.uint64(width >> 32), np.uint64(width & 0xFFFFFFFF)
    high_hash, low_hash = hashes >> half, hashes & low
    middle = high_hash * low_width + (low_hash * low_width >> half)
    high_middle = low_hash * high_width + (middle & low)
    return high_hash * high_width + (middle >> half) + (high_middle >> half)
