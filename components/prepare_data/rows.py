"""Defines what every reader returns: the good rows, and the faults of the bad ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.storage.errors import DataError, Problem


@dataclass(frozen=True)
class Columns:
    """The columns to read from a file.

    Attributes:
        features: Names, in the order of the model's input.
        label: Name.
    """

    features: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Rows:
    """The good rows of one block.

    Attributes:
        features: float32 of shape [rows, features], finite.
        labels: The distinct labels of the block, as text.
        codes: int32 of shape [rows], indices of `labels`.
        lines: int64 of shape [rows], the line where each begins.
        faults: The bad rows, which are left out.
        size: The unpacked size of the block in bytes.
    """

    features: np.ndarray
    labels: list[str]
    codes: np.ndarray
    lines: np.ndarray
    faults: BlockFaults
    size: int

    @classmethod
    def good(
        cls,
        features: np.ndarray,
        labels: list[str],
        codes: np.ndarray,
        faults: BlockFaults,
        size: int,
    ) -> Rows:
        """Return the rows without a marked fault."""
        keep = faults.good
        if keep.all():
            return cls(features, labels, codes, faults.lines, faults, size)
        # A label that only bad rows have is not a class.
        used, codes = np.unique(codes[keep], return_inverse=True)
        labels = [labels[code] for code in used.tolist()]
        return cls(features[keep], labels, codes, faults.lines[keep], faults, size)


def empty(name: str) -> DataError:
    """Return the error for a file without a header."""
    return DataError(
        Problem(
            f"{name} is empty",
            expected="a header with the names of the columns, and rows",
            fix="correct data_uri, or write the file again",
        )
    )
