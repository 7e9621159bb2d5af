"""Encodes the rows of images with their bytes, for the buckets.

An Arrow stream takes 0.7 ms however few rows it has, and a bucket often has a single image of a
part. So the rows of a bucket are written as they are in memory, and the images after them:

    the number of rows ─ the rows ─ the bytes of each image, one after the other

Called by buckets.py and tasks.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

# The fields of a row that tables lack: the hash of the image's bytes, and their number.
FIELDS = (("content", "<u8"), ("size", "<u4"))
_ROWS = struct.Struct("<I")


def pieces_of(contents: pa.LargeBinaryArray) -> list[memoryview]:
    """Return the bytes of each value, which are not copied."""
    _, offsets, values = contents.buffers()
    at = contents.offset
    ends = np.frombuffer(offsets, np.int64)[at : at + len(contents) + 1].tolist()
    data = memoryview(values or b"")
    return [data[start:end] for start, end in pairwise(ends)]


def stream_of(rows: np.ndarray, pieces: Sequence[memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the stream of the rows of a bucket, given the bytes of each; nothing without rows."""
    if len(rows):
        yield _ROWS.pack(len(rows))
        yield rows.tobytes()
        yield from pieces


def rows_of(stream: bytes, kind: np.dtype) -> tuple[np.ndarray, list[memoryview]]:
    """Return the rows of a stream, and the bytes of each, which are not copied."""
    (count,) = _ROWS.unpack_from(stream)
    rows = np.frombuffer(stream, kind, count, _ROWS.size)
    values = memoryview(stream)[_ROWS.size + rows.nbytes :]
    ends = np.append(0, np.cumsum(rows["size"], dtype=np.int64)).tolist()
    return rows, [values[start:end] for start, end in pairwise(ends)]


def array_of(pieces: Sequence[memoryview]) -> pa.LargeBinaryArray:
    """Return copies of values as an array."""
    offsets = np.append(0, np.cumsum([*map(len, pieces)], dtype=np.int64))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(pieces), buffers)


def joined(images: Sequence[pa.LargeBinaryArray | None]) -> pa.LargeBinaryArray | None:
    """Return the images of several pieces of rows as one array; None for tables."""
    arrays = [array for array in images if array is not None]
    return pa.concat_arrays(arrays) if arrays else None
