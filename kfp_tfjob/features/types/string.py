"""Strings that are hashed into bins, as codes in a packed row: 0 if missing, 1 + bin.

The hash is SipHash-2-4, which TensorFlow has as `to_hash_bucket_strong`. It is specified in
"SipHash: a fast short-input PRF" (Aumasson and Bernstein, 2012). The key is that of its test
vectors, the bytes 00, 01, ... 0f. A string is hashed as its UTF-8 bytes, with neither case nor
accents folded. The bin is the hash, an unsigned number of 64 bits, modulo the number of bins.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kfp_tfjob.features.types.base import (
    ColumnStatistics,
    ColumnType,
    Summary,
    TrainValues,
)
from kfp_tfjob.features.types.category import MOST_CODES, refuse_foreign
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.formatting import counted

_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


@dataclass(frozen=True, kw_only=True)
class StringStatistics(ColumnStatistics):
    """How many bins have rows."""

    bins: int

    @property
    def words(self) -> str:
        """How many bins have rows, as a string."""
        return f"hashed into {counted(self.bins, 'bin')}"


@dataclass(frozen=True)
class String(ColumnType):
    """A string that is hashed.

    Attributes:
        bins: The number of bins.
    """

    bins: int = field(kw_only=True)

    kind = "text"
    schema_type = "text"
    is_hashed = True
    nouns = ("a text", "texts")
    example = "a text"
    statistics = StringStatistics

    def __post_init__(self) -> None:
        """Reject a number of bins that float32 cannot hold."""
        if not 1 < self.size <= MOST_CODES:
            raise ValueError(f"{self.name!r} has {self.size:,} codes; expected 2 to {MOST_CODES:,}")

    @classmethod
    def fit(cls, name: str, values: TrainValues, options: DataOptions) -> Self:
        """Return the encoding, which only depends on the options."""
        return cls(name, bins=options.hash_bins)

    @property
    def size(self) -> int:
        """The number of packed codes."""
        return 1 + self.bins

    @property
    def group(self) -> Hashable:
        """Columns with as many bins are hashed together."""
        return self.bins

    @classmethod
    def pack(cls, columns: Sequence[Self], values: np.ndarray) -> list[np.ndarray]:
        """Return the codes, which are those of the shards.

        Raises:
            DamagedRecordError: There is no such bin.
        """
        for j, column in enumerate(columns):
            refuse_foreign(column.name, values[:, j], column.bins)
        return [values]

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the codes of strings."""
        import tensorflow as tf

        hashed = tf.strings.to_hash_bucket_strong(values, columns[0].bins, _KEY)
        return [tf.where(values == "", np.int64(0), hashed + 1)]

    def codes_of(self, texts: Sequence[str]) -> np.ndarray:
        """Return (texts,) int32: 1 + the bin of each string."""
        bins = bins_of([text.encode() for text in texts], self.bins)
        return (bins + 1).astype(np.int32)

    def describe(self, column: Summary) -> StringStatistics:
        """Return how many bins have rows."""
        return StringStatistics(bins=int((column.rows > 0).sum()))


def bins_of(texts: Sequence[bytes], bins: int) -> np.ndarray:
    """Return (texts,) int64, the bin of each text, from 0 to `bins` - 1.

    Args:
        texts: UTF-8 strings; hash each distinct string once, because long ones take long.
        bins: Number of bins.
    """
    return (siphash(texts) % np.uint64(bins)).astype(np.int64)


def siphash(texts: Sequence[bytes]) -> np.ndarray:
    """Return (texts,) uint64, the SipHash-2-4 of each text with _KEY."""
    if not texts:
        return np.empty(0, np.uint64)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    # A string is filled up to whole words of 8 bytes; the last byte is its length modulo 256.
    words = lengths // 8 + 1
    filled = b"".join(text + bytes(7 - len(text) % 8) + bytes([len(text) & 0xFF]) for text in texts)
    stream = np.frombuffer(filled, "<u8")
    starts = np.cumsum(words) - words
    order = np.argsort(-words, kind="stable")  # so strings that have ended are at the end
    starts, remaining = starts[order], -words[order]
    state = np.empty((4, len(texts)), np.uint64)
    for row, constant in enumerate(_START):
        state[row] = constant ^ _KEY[row % 2]
    for at in range(int(words.max())):
        active = state[:, : np.searchsorted(remaining, -at, "left")]
        word = stream[starts[: active.shape[1]] + at]
        active[3] ^= word
        _rounds(active, 2)
        active[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _rounds(state, 4)
    hashes = np.empty(len(texts), np.uint64)
    hashes[order] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


def _rounds(state: np.ndarray, count: int) -> None:
    """Mix the (4, texts) uint64 state in place."""
    a, b, c, d = state
    for _ in range(count):
        a += b
        c += d
        b[:] = _rotated(b, 13) ^ a
        d[:] = _rotated(d, 16) ^ c
        a[:] = _rotated(a, 32)
        c += b
        a += d
        b[:] = _rotated(b, 17) ^ c
        d[:] = _rotated(d, 21) ^ a
        c[:] = _rotated(c, 32)


def _rotated(values: np.ndarray, bits: int) -> np.ndarray:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)
