"""Strings that are hashed into bins, as codes in a packed row: 0 if missing, 1 + bin.

The hash is SipHash-2-4, which TensorFlow offers as `to_hash_bucket_strong`. It is specified in
"SipHash: a fast short-input PRF" (Aumasson and Bernstein, 2012). The key is the paper's test key,
the bytes 00, 01, ... 0f. A string is hashed as its UTF-8 bytes, with neither case nor
accents folded. The bin is the hash, an unsigned number of 64 bits, modulo the number of bins.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kfp_tfjob.common.formatting import counted
from kfp_tfjob.options.data import DataOptions

from ..string_hashes import string_hashes
from .base import ColumnStatistics, ColumnType, Summary, TrainValues
from .category import MOST_CODES

_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)


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
        return cls(name, cls.learn_missing(values), bins=options.hash_bins)

    @property
    def size(self) -> int:
        """The number of packed codes."""
        return 1 + self.bins

    @property
    def group(self) -> Hashable:
        """Columns with as many bins are hashed together."""
        return self.bins

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the codes of strings (rows, columns), as the only one of `parts`.

        All columns have as many bins, by `group`. Called by raw_columns.py, in the exported model
        and in the trainer.
        """
        import tensorflow as tf

        hashed = tf.strings.to_hash_bucket_strong(values, columns[0].bins, _KEY)
        return [tf.where(values == "", np.int64(0), hashed + 1)]

    def codes_of(self, texts: Sequence[str]) -> np.ndarray:
        """Return (texts,) int32: 1 + the bin of each string, by `bins_of`."""
        return (bins_of(string_hashes(texts), self.bins) + 1).astype(np.int32)

    def describe(self, column: Summary) -> StringStatistics:
        """Return how many bins have rows."""
        return StringStatistics(bins=int((column.rows > 0).sum()))


def bins_of(hashes: np.ndarray, bins: int) -> np.ndarray:
    """Return (strings,) int64, a bin from 0 to `bins` - 1 for each hash of a string.

    Statistics count these bins, because preparing data must not need TensorFlow. The model's bins
    are others, but about as many of them are used.
    """
    return (hashes % np.uint64(bins)).astype(np.int64)
