"""Keeps the texts of columns that are hashed, for the test split: on local disk, by row hash.

The shards have only the bins of such texts, and a dictionary would not fit in memory. Rows with the
same hash have the same texts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.rows import Texts


class TextSpill:
    """Texts in files, by the first 8 bits of the hashes of their rows.

    Args:
        folder: A folder on local disk.
        names: The columns.
    """

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self.names = folder, names
        fields = [("hash", pa.uint64()), *((str(i), pa.string()) for i in range(len(names)))]
        self._schema = pa.schema(fields)
        self._files: dict[int, pa.ipc.RecordBatchStreamWriter] = {}

    def add(self, hashes: np.ndarray, columns: list[Texts]) -> None:
        """Add rows; `columns` has the texts of each name."""
        if not len(hashes):
            return
        arrays = [pa.array(hashes)]
        for column in columns:
            texts = pa.array(["", *column.texts], pa.string())
            arrays.append(texts.take(pa.array(column.codes)))
        bins = hashes >> np.uint64(56)
        for number in np.unique(bins).tolist():
            places = pa.array(np.flatnonzero(bins == number))
            taken = [array.take(places) for array in arrays]
            self._file(number).write_batch(pa.record_batch(taken, schema=self._schema))

    def close(self) -> None:
        """Finish writing."""
        for file in self._files.values():
            file.close()

    def find(self, hashes: np.ndarray) -> list[pa.Array]:
        """Return the texts of rows of one file, an array for each name.

        Args:
            hashes: uint64 of shape [rows], of rows that were added, in ascending order.
        """
        if not len(hashes):
            return [pa.array([], pa.string()) for _ in self.names]
        with pa.memory_map(str(self._path(int(hashes[0] >> np.uint64(56))))) as stream:
            table = pa.ipc.open_stream(stream).read_all().combine_chunks()
        known = table["hash"].to_numpy()
        order = np.argsort(known, kind="stable")
        places = pa.array(order[np.searchsorted(known[order], hashes)])
        found = [table[str(i)].take(places) for i in range(len(self.names))]
        return [pa.concat_arrays(column.chunks) for column in found]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:03d}.texts"

    def _file(self, number: int) -> pa.ipc.RecordBatchStreamWriter:
        if number not in self._files:
            sink = pa.OSFile(str(self._path(number)), "wb")
            self._files[number] = pa.ipc.new_stream(sink, self._schema)
        return self._files[number]
