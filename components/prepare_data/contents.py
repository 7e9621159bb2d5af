"""Encodes the rows of images with their bytes, for the buckets.

An Arrow stream takes 0.7 ms however few rows it has, and a bucket often has a single image of a
part. So the rows of a bucket are written as they are in memory, and the images after them:

    the number of rows ─ the rows ─ the bytes of each image, one after the other

Called by buckets.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

# The fields of a row that tables lack: the hash of the image's bytes, and their number.
FIELDS = (("content", "<u8"), ("size", "<u4"))
_ROWS = struct.Struct("<I")


def stream_of(rows: np.ndarray, images: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the stream of a bucket's rows, given the bytes of each; nothing for an empty bucket."""
    if len(rows):
        yield _ROWS.pack(len(rows))
        yield rows.tobytes()
        yield from images


def rows_of(stream: pa.Buffer, kind: np.dtype) -> tuple[np.ndarray, list[memoryview]]:
    """Return the rows of a stream, and the bytes of each, which are not copied."""
    (count,) = _ROWS.unpack_from(stream)
    rows = np.frombuffer(stream, kind, count, _ROWS.size)
    values = memoryview(stream)[_ROWS.size + rows.nbytes :]
    ends = accumulate(rows["size"].tolist(), initial=0)
    return rows, [values[start:end] for start, end in pairwise(ends)]


def array_of(pieces: Sequence[memoryview]) -> pa.LargeBinaryArray:
    """Return copies of values as an array."""
    offsets = np.append(0, np.cumsum([*map(len, pieces)], dtype=np.int64))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(pieces), buffers)


def chained(images: Sequence[pa.ChunkedArray | None]) -> pa.ChunkedArray | None:
    """Return the images of several pieces of rows, which are not copied; None for tables."""
    chunks = [chunk for array in images if array is not None for chunk in array.chunks]
    return pa.chunked_array(chunks) if chunks else None
