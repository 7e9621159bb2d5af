"""The columns that a function of the user's own asks for; each is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.storage.formatting import choices, nearest


class Columns(Mapping[str, NDArray[Any]]):
    """The (rows,) values of each column, by its name.

    Args:
        names: The columns.
        read: Returns the values of a column; it is called once for each.
    """

    def __init__(self, names: Sequence[str], read: Callable[[str], NDArray[Any]]) -> None:
        self._names, self._read = tuple(names), read
        self._known: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises:
            KeyError: There is none of this name.
        """
        if name not in self._names:
            meant = nearest(str(name), self._names)
            question = f"did you mean {meant!r}? " if meant else ""
            known = choices(self._names, meant)
            raise KeyError(f"no column {name!r}: {question}The columns are {known}")
        if name not in self._known:
            self._known[name] = self._read(name)
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


def of_parquet(paths: Sequence[str], name: str) -> NDArray[Any]:
    """Return a column of Parquet files without gaps; rows with the same text share it.

    Args:
        paths: The files, in order.
        name: The column.
    """
    from pyarrow import parquet, types

    kind = parquet.read_schema(paths[0]).field(name).type
    texts = [] if types.is_integer(kind) or types.is_floating(kind) else [name]
    files = [parquet.ParquetFile(path, read_dictionary=texts) for path in paths]
    chunks = [it for file in files for it in file.read(columns=[name]).column(name).chunks]
    if texts:
        values = [(it.dictionary.to_numpy(False), it.indices.to_numpy()) for it in chunks]
        return np.concatenate([known[codes] for known, codes in values])
    found = np.concatenate([it.to_numpy(zero_copy_only=False) for it in chunks])
    # Numbers were rounded to float32: as floats of 64 bits, none would equal 0.1.
    return found.astype(np.float32) if types.is_floating(kind) else found
