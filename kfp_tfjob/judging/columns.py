"""Keeps values by row in bounded memory: many rows are kept in a file and read in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Up to this many values of a column stay in memory: 4 million rows of two classes and two models
# are about 80 MB. A row of 30 classes has 30 scores.
VALUES_IN_MEMORY = 4_194_304
# Rows that are read and computed at once: 2 MB for each float64 array.
CHUNK = 262_144


class Column(Protocol):
    """Values by row: an array, or a `Filed` one."""

    @property
    def dtype(self) -> np.dtype:
        """The type of a value."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
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
        shape, offset = (max(stop - start, 0), *self._width), start * values * self.dtype.itemsize
        if values > 1 and shape[0]:
            # Mapped and not read: the scores of one class are a small part of these bytes.
            return np.asarray(np.memmap(self._path, self.dtype, "r", offset, shape))[::step]
        read = np.fromfile(self._path, self.dtype, shape[0] * values, offset=offset)
        return read.reshape(shape)[::step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all rows."""
        return self[:].astype(dtype or self.dtype, copy=False)


class Growing:
    """A column that grows by batches, in memory first and then in a file.

    Args:
        path: The file; None to keep all rows in memory.
        most: The most values to keep in memory; a row may have several.
    """

    def __init__(self, path: Path | None, most: int = VALUES_IN_MEMORY) -> None:
        self._path, self._most = path, most
        self._parts: list[NDArray[Any]] = []
        self._last: NDArray[Any] | None = None  # no row of what is in the file
        self._held = self._rows = 0

    def add(self, values: NDArray[Any]) -> None:
        """Add (batch, ...) rows."""
        self._parts.append(values)
        self._held += values.size
        self._rows += len(values)
        if self._path and self._held > self._most:
            self._flush(self._path)

    def finish(self) -> Any:
        """Return the whole column."""
        if self._last is None:
            return self._whole()
        assert self._path is not None
        self._flush(self._path)
        return Filed(self._path, self._last.dtype, self._last.shape[1:], self._rows)

    def _whole(self) -> NDArray[Any]:
        """Return the parts as one array, and free each where it is copied."""
        if len(self._parts) > 1:
            first, end = self._parts[0], self._rows
            whole = np.empty((end, *first.shape[1:]), first.dtype)
            while self._parts:
                part = self._parts.pop()
                whole[end - len(part) : end] = part
                end -= len(part)
            self._parts = [whole]
        return self._parts[0]

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
