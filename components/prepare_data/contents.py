"""Keeps the bytes of images between the task that reads them and the task that writes their shard.

Images are far larger than other values, so they do not go through the streams of the buckets. Each
bucket file has one row for each image, and a file beside it with the bytes, in the order of these
rows. The rows of a shard are next to each other there, so a shard reads one range of each file.

Called by tasks.py, buckets.py and shards.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.bucket_folder import BucketFolder, damaged
from kfp_tfjob.features.string_hashes import bytes_hash

# The fields of a row: the hash of the bytes, their number and CRC32C, and where they are. `file` is
# the number of the bucket file, which only the reader of all files knows.
PLACE = (
    ("content", "<u8"),
    ("size", "<u4"),
    ("checksum", "<u4"),
    ("start", "<u8"),
    ("file", "<i4"),
)


def file_beside(bucket_file: str) -> str:
    """Return the name of the file with the contents of a bucket file's rows."""
    return f"{bucket_file}.contents"


def pieces_of(contents: pa.LargeBinaryArray) -> list[memoryview]:
    """Return the bytes of each value, which are not copied."""
    _, offsets, values = contents.buffers()
    at = contents.offset
    ends = np.frombuffer(offsets, np.int64)[at : at + len(contents) + 1].tolist()
    data = memoryview(values or b"")
    return [data[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def places_of(contents: pa.LargeBinaryArray) -> np.ndarray:
    """Return the fields of PLACE for each value; it is not known yet where they will be."""
    places = np.zeros(len(contents), list(PLACE))
    for row, piece in enumerate(pieces_of(contents)):
        value = bytes(piece)  # google_crc32c takes nothing else
        places["content"][row] = bytes_hash(value)
        places["size"][row] = len(value)
        places["checksum"][row] = google_crc32c.value(value)
    return places


@dataclass(frozen=True)
class Contents:
    """The bytes of some rows, which are in memory.

    Attributes:
        pieces: By the number of a bucket file: its name, and the offset and the bytes of the range
            that has these rows.
    """

    pieces: dict[int, tuple[str, int, bytes]]

    @classmethod
    def read(cls, folder: BucketFolder, names: Sequence[str], rows: np.ndarray) -> Contents:
        """Read the bytes of rows, given the names of the bucket files.

        Raises:
            DataError: A file is missing.
        """
        pieces = {}
        for number in np.unique(rows["file"]).tolist():
            of_file = rows[rows["file"] == number]
            start = int(of_file["start"].min())
            end = int((of_file["start"] + of_file["size"]).max())
            name = file_beside(names[number])
            pieces[number] = name, start, folder.read(name, start, end)
        return cls(pieces)

    def of(self, rows: np.ndarray) -> pa.LargeBinaryArray:
        """Return the bytes of each row.

        Raises:
            DataError: A file is damaged.
        """
        values = []
        columns = (rows[name].tolist() for name in ("file", "start", "size", "checksum"))
        for number, start, size, checksum in zip(*columns, strict=True):
            name, first, data = self.pieces[number]
            value = data[start - first : start - first + size]
            if len(value) != size or google_crc32c.value(value) != checksum:
                raise damaged(name)
            values.append(value)
        offsets = np.append(0, np.cumsum(rows["size"], dtype=np.int64))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)
