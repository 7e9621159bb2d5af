"""Keeps values by row in bounded memory: many rows are kept in a file and read in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Up to this many values of a column stay in memory: 4 million rows of two classes and two models
# are about 80 MB. A row of 30 classes has 30 scores.
VALUES_IN_MEMORY = 4_194_304
# Rows that are read and computed at once: 2 MB for each float64 array.
CHUNK = 262_144


class Filed:
    """A (rows, ...) array in a file; consecutive rows are mapped when they are asked for.

    Args:
        path: The file.
        dtype: The type of a value.
        width: The shape of one row; () for one value.
        rows: The number of rows.
    """

    def __init__(self, path: Path, dtype: np.dtype, width: tuple[int, ...], rows: int) -> None:
        self._path, self.dtype, self.shape = path, dtype, (rows, *width)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Map consecutive rows: the scores of one class are a small part of their bytes."""
        start, stop, _ = rows.indices(len(self))
        width = self.shape[1:]
        offset = start * math.prod(width) * self.dtype.itemsize
        shape = (stop - start, *width)
        return np.asarray(np.memmap(self._path, self.dtype, "r", offset, shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Map all rows."""
        return self[:].astype(dtype or self.dtype, copy=False)


Column: TypeAlias = "NDArray[Any] | Filed"


class Growing:
    """A column that grows by batches, in memory first and then in a file.

    Args:
        path: The file; None to keep all rows in memory.
        most: The most values to keep in memory; a row may have several.
    """

    def __init__(self, path: Path | None, most: int = VALUES_IN_MEMORY) -> None:
        self._path, self._most = path, most
        self._parts: list[NDArray[Any]] = []
        self._held = self._filed = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add (batch, ...) rows."""
        self._parts.append(values)
        self._held += values.size
        if self._path and self._held > self._most:
            self._flush(self._path)

    def finish(self) -> Any:
        """Return the whole column."""
        last = self._parts[-1]
        if not self._filed or not self._path:
            return np.concatenate(self._parts)
        self._flush(self._path)
        return Filed(self._path, last.dtype, last.shape[1:], self._filed)

    def _flush(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for part in self._parts:
                file.write(np.ascontiguousarray(part).data)
        self._filed += sum(map(len, self._parts))
        self._parts, self._held = [self._parts[-1][:0]], 0  # its type and shape
        self._most = CHUNK  # the file exists: there is no reason to hold many rows


def chunks(rows: int, size: int = CHUNK) -> Iterator[slice]:
    """Yield consecutive slices of a number of rows."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
