"""Strings that are hashed into bins, as codes in a packed row: 0 if missing, 1 + bin."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kfp_tfjob.features import text_hash
from kfp_tfjob.features.types.base import (
    ColumnStatistics,
    ColumnType,
    Summary,
    TrainValues,
)
from kfp_tfjob.features.types.category import MOST_CODES, refuse_foreign
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.formatting import counted


@dataclass(frozen=True, kw_only=True)
class StringStatistics(ColumnStatistics):
    """How many bins have rows."""

    bins: int

    @property
    def words(self) -> str:
        """How many bins have rows, as a text."""
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
        """Refuse a number of bins that float32 cannot hold."""
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
            DataError: There is no such bin.
        """
        for j, column in enumerate(columns):
            refuse_foreign(column.name, values[:, j], column.bins)
        return [values]

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the codes of strings."""
        import tensorflow as tf

        hashed = tf.strings.to_hash_bucket_strong(values, columns[0].bins, text_hash.KEY)
        return [tf.where(values == "", np.int64(0), hashed + 1)]

    def describe(self, column: Summary) -> StringStatistics:
        """Return how many bins have rows."""
        return StringStatistics(bins=int((column.rows > 0).sum()))
