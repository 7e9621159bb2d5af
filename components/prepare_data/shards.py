"""Writes the TFRecord shards of a dataset, one at a time, from local disk to the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store

SHARD_BYTES = 64 << 20
_ENCODE_BYTES = 8 << 20  # encoded at a time


def shard_rows(rows: int, record_bytes: int) -> list[int]:
    """Return the rows of each shard of a split: at most about 64 MiB, and as equal as possible."""
    shards = max(1, -(-rows * record_bytes // SHARD_BYTES))
    return [rows // shards + (i < rows % shards) for i in range(shards)]


class Shards:
    """Writes the rows of one split after the other.

    Args:
        store: The store.
        base: The directory of the dataset.
        folder: Local folder for the shard that is being written.
        encoder: Encodes the rows.
        rows: The number of rows in each split.

    Attributes:
        objects: The shards stored so far.
        names: The names of all shards by split.
    """

    def __init__(
        self,
        store: Store,
        base: S3Address,
        folder: Path,
        encoder: Encoder,
        rows: Mapping[str, int],
    ) -> None:
        self._store, self._base, self._folder, self._encoder = store, base, folder, encoder
        self.objects: list[ManifestObject] = []
        self._left = {
            split: [
                (f"{split}-{i:05d}.tfrecord", size)
                for i, size in enumerate(shard_rows(count, encoder.record_bytes))
            ]
            for split, count in rows.items()
        }
        self.names = {split: [name for name, _ in left] for split, left in self._left.items()}
        self._open: tuple[str, int, IO[bytes]] | None = None

    def add(self, split: str, rows: np.ndarray, labels: np.ndarray) -> None:
        """Write the next rows of a split; a full shard goes to the store.

        Args:
            split: One of the splits.
            rows: Rows of the spill.
            labels: Class indices or numbers, of shape [rows].
        """
        step = max(1, _ENCODE_BYTES // self._encoder.record_bytes)
        start = 0
        while start < len(labels):
            if self._open is None:
                name, size = self._left[split].pop(0)
                self._open = name, size, open(self._folder / name, "wb")
            name, missing, file = self._open
            end = min(start + step, start + missing, len(labels))
            part = rows[start:end]
            values = part["features"], labels[start:end], part["codes"], part["dates"]
            file.write(self._encoder.encode(*values))
            self._open = name, missing - (end - start), file
            start = end
            if not self._open[1]:
                self._send()

    def _send(self) -> None:
        name, _, file = self._open
        file.close()
        path = self._folder / name
        self.objects.append(self._store.send(path, self._base / name, name))
        path.unlink()
        self._open = None
