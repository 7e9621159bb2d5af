"""Keeps values by row in bounded memory: many rows are kept in a file and read in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Up to this many rows stay in memory: 4 million rows of two models are about 80 MB.
ROWS_IN_MEMORY = 4_194_304
# Rows that are read and computed at once: 2 MB for each float64 array.
CHUNK = 262_144


class Column(Protocol):
    """Values by row: an array, or a `Filed` one."""

    @property
    def dtype(self) -> np.dtype:
        """The type of a value."""
        ...

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, rows: slice, /) -> Any:
        """Return consecutive rows as an array."""
        ...


class Filed:
    """A (rows, ...) array in a file; consecutive rows are read when they are asked for.

    Args:
        path: The file.
        dtype: The type of a value.
        width: The shape of one row; () for one value.
        rows: The number of rows.
    """

    def __init__(self, path: Path, dtype: np.dtype, width: tuple[int, ...], rows: int) -> None:
        self._path, self.dtype, self._width, self._rows = path, dtype, width, rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return (self._rows, *self._width)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read consecutive rows, or every n-th."""
        start, stop, step = rows.indices(self._rows)
        values = int(np.prod(self._width, dtype=np.int64))
        count, offset = max(stop - start, 0) * values, start * values * self.dtype.itemsize
        read = np.fromfile(self._path, self.dtype, count, offset=offset)
        return read.reshape(-1, *self._width)[::step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all rows."""
        return self[:].astype(dtype or self.dtype, copy=False)


class Growing:
    """A column that grows by batches, in memory first and then in a file.

    Args:
        path: The file; None to keep all rows in memory.
        most: The most rows to keep in memory.
    """

    def __init__(self, path: Path | None, most: int = ROWS_IN_MEMORY) -> None:
        self._path, self._most = path, most
        self._parts: list[NDArray[Any]] = []
        self._held = self._rows = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add (batch, ...) rows."""
        self._parts.append(values)
        self._held += len(values)
        self._rows += len(values)
        if self._path and self._held > self._most:
            self._flush(self._path)

    def finish(self) -> Any:
        """Return the whole column."""
        if self._held == self._rows:
            return np.concatenate(self._parts)
        assert self._path is not None
        last = self._parts[-1] if self._parts else self._last
        self._flush(self._path)
        return Filed(self._path, last.dtype, last.shape[1:], self._rows)

    def _flush(self, path: Path) -> None:
        if not self._parts:
            return
        self._last = self._parts[-1][:0]
        with path.open("ab") as file:
            for part in self._parts:
                file.write(np.ascontiguousarray(part).data)
        self._parts, self._held = [], 0
        self._most = CHUNK  # the file exists: there is no reason to hold many rows


def chunks(rows: int, size: int = CHUNK) -> Iterator[slice]:
    """Yield consecutive slices of a number of rows."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def joined(columns: Sequence[Any]) -> Any:
    """Concatenate arrays, or return None if they are None."""
    return None if columns[0] is None else np.concatenate(columns)
