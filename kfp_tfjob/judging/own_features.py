"""The columns that a function of the user's own asks for; each is read when it is asked for.

A column of numbers or dates has its own file, which is written once and then mapped into
memory. Texts are read into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.storage.files import written
from kfp_tfjob.storage.formatting import choices, nearest

_ROWS = 65_536  # of a column that are read at once


class Columns(Mapping[str, Any]):
    """The (rows,) values of each column, by its name.

    Args:
        names: The columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._known: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises:
            KeyError: There is none of this name.
        """
        if name not in self._known:
            if name not in self._names:
                meant = nearest(str(name), self._names)
                question = f"did you mean {meant!r}? " if meant else ""
                known = choices(self._names, meant)
                raise KeyError(f"no column {name!r}: {question}The columns are {known}")
            self._known[name] = self._read(self._names.index(name))
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order of the schema."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a column, without reading it."""
        return name in self._names

    def _read(self, place: int) -> NDArray[Any]:
        raise NotImplementedError


class PackedColumns(Columns):
    """The columns of a (rows, columns) array.

    Args:
        names: The columns.
        rows: The array.
    """

    def __init__(self, names: Sequence[str], rows: NDArray[Any]) -> None:
        super().__init__(names)
        self._rows = rows

    def _read(self, place: int) -> NDArray[Any]:
        return self._rows[:, place]


class ParquetColumns(Columns):
    """The columns of Parquet files without gaps.

    Args:
        names: The columns.
        paths: The files, in order.
        folder: Where columns of numbers and dates are kept. Several processes may share it, one
            after another.
    """

    def __init__(self, names: Sequence[str], paths: Sequence[str], folder: Path) -> None:
        super().__init__(names)
        self._paths, self._folder = paths, folder

    def _read(self, place: int) -> NDArray[Any]:
        from pyarrow import parquet, types

        name = self._names[place]
        kind = parquet.read_schema(self._paths[0]).field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind)):
            return np.concatenate([_texts(part) for part in self._parts(name, [name])])
        path = self._folder / str(place)
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with written(path) as unfinished, open(unfinished, "wb") as file:
                for part in self._parts(name):
                    part.to_numpy(zero_copy_only=False).tofile(file)
        return np.memmap(path, kind.to_pandas_dtype(), "r")

    def _parts(self, name: str, coded: Sequence[str] = ()) -> Iterator[Any]:
        """Yield the arrays of Arrow of a column; `coded` has it with a dictionary."""
        from pyarrow import parquet

        for path in self._paths:
            file = parquet.ParquetFile(path, read_dictionary=list(coded))
            for batch in file.iter_batches(_ROWS, columns=[name]):
                yield batch.column(0)


def _texts(part: Any) -> NDArray[Any]:
    """Return (rows,) texts; rows with the same one share it."""
    return part.dictionary.to_numpy(zero_copy_only=False)[part.indices.to_numpy()]
