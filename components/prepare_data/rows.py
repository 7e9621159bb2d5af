"""Defines what every reader returns: the good rows, and the faults of the bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.features.cells import Texts
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.storage.errors import DataError, Problem


@dataclass(frozen=True)
class Columns:
    """The columns to read from a file.

    Attributes:
        features: Names, in the order of the model's input.
        label: Name.
        parsed: The types of the features that a reader of text may parse as `arrow_type`.
        extra: Columns that decide about the split; a reader of text leaves them as they are.
        texts: The features that a reader of text may return as dictionaries.
        gaps: Whether a reader of text may parse a block with missing values.
    """

    features: tuple[str, ...]
    label: str
    parsed: Mapping[str, type[ColumnType]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()
    gaps: bool = True

    @property
    def all(self) -> tuple[str, ...]:
        """Every column to read, each once."""
        return tuple(dict.fromkeys((*self.features, self.label, *self.extra)))


@dataclass(frozen=True)
class Rows:
    """The good rows of one block.

    Attributes:
        features: float32 of shape [rows, features], finite, or NaN for a gap.
        labels: The distinct labels of the block, as text.
        codes: int32 of shape [rows], indices of `labels`.
        lines: int64 of shape [rows], the line where each begins.
        faults: The bad rows, which are left out.
        size: The unpacked size of the block in bytes.
        texts: The columns of categories and texts.
        dates: int64 of shape [rows, dates], microseconds since 1970 in UTC, NO_DATE for a gap.
    """

    features: np.ndarray
    labels: list[str]
    codes: np.ndarray
    lines: np.ndarray
    faults: BlockFaults
    size: int
    texts: tuple[Texts, ...] = ()
    dates: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @property
    def good(self) -> Rows:
        """The rows without a marked fault."""
        keep = self.faults.good
        if keep.all():
            return self
        # A label that only bad rows have is not a class.
        used, codes = np.unique(self.codes[keep], return_inverse=True)
        return Rows(
            self.features[keep],
            [self.labels[code] for code in used.tolist()],
            codes,
            self.lines[keep],
            self.faults,
            self.size,
            tuple(column.of(keep) for column in self.texts),
            self.dates[keep] if len(self.dates) else self.dates,
        )


def empty(name: str) -> DataError:
    """Return the error for a file without a header."""
    return DataError(
        Problem(
            f"{name} is empty",
            expected="a header with the names of the columns, and rows",
            fix="correct data_uri, or write the file again",
        )
    )
