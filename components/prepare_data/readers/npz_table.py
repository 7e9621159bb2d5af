"""Reads the arrays of an npz file as arrow columns, without loading them as a whole.

An array of shape [rows] is a column; one with more dimensions is one column for each value of a
row, in the order in which NumPy stores them.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import IO

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.header import MOST_COLUMNS, too_many_columns
from kfp_tfjob.components.prepare_data.readers.arrow_table import Chunk
from kfp_tfjob.components.prepare_data.readers.lists import element_names
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.storage.errors import DataError, Problem

_SUFFIX = ".npy"
_WIDEST = 1 << 20  # bytes of a row of one array
_MOST_BYTES = 16 << 20  # of all arrays in a chunk


@dataclass(frozen=True)
class _Array:
    """An array in the file.

    Attributes:
        shape: Its shape.
        kind: The type of its values.
        by_column: Whether it is stored column by column.
    """

    shape: tuple[int, ...]
    kind: np.dtype
    by_column: bool

    @property
    def width(self) -> int:
        return prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        return self.width * self.kind.itemsize


class NpzTable:
    """An npz file.

    Args:
        stream: Its bytes, seekable.
        name: Name of the file, for messages.

    Raises:
        DataError: It is damaged.
    """

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._name = name
        with self._undamaged():
            self._zip = zipfile.ZipFile(stream)
            members = self._zip.namelist()
            if len(members) > MOST_COLUMNS:
                raise DataError(too_many_columns(name, len(members)))
            self._arrays = {
                member.removesuffix(_SUFFIX): self._header(member)
                for member in members
                if member.endswith(_SUFFIX)
            }
        self._where: dict[str, tuple[str, int]] = {}  # of a column: its array and its place
        fields = []
        for key, array in self._arrays.items():
            flat = len(array.shape) < 2
            names = [key] if flat else element_names(key, array.width, name)
            for i, column in enumerate(names):
                self._where[column] = (key, i)
                # `problems` says why an array without a type cannot be read.
                fields.append(pa.field(column, _type(array.kind) or pa.binary()))
            if len(fields) > MOST_COLUMNS:
                raise DataError(too_many_columns(name, len(fields)))
        self.schema = pa.schema(fields)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return why these arrays are not the columns of a table."""
        keys = self._keys(columns)
        found = [problem for key in keys for problem in self._of_array(key)]
        rows = {key: self._arrays[key].shape[0] for key in keys if self._arrays[key].shape}
        if len(set(rows.values())) > 1:
            found.append(
                Problem(
                    f"the arrays of {self._name} have different numbers of rows",
                    received=", ".join(f"{key!r} {count:,}" for key, count in rows.items()),
                    expected="the same first dimension in all of them",
                    fix="leave arrays out with data_options.drop, or write the file again",
                )
            )
        return found

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns, at most `rows` rows at a time."""
        keys = self._keys(columns)
        total = self._arrays[keys[0]].shape[0]
        # An array is read as a whole, also if few of its columns are wanted, or its texts are long.
        rows = max(1, min(rows, _MOST_BYTES // sum(self._arrays[key].row_bytes for key in keys)))
        with ExitStack() as stack:
            with self._undamaged():
                streams = {key: self._open(key, stack) for key in keys}
            for start in range(0, total, rows):
                count = min(rows, total - start)
                with self._undamaged():
                    parts = {key: self._read(streams[key], key, count) for key in keys}
                found = {}
                for name in columns.all:
                    key, i = self._where[name]
                    found[name] = pa.array(np.ascontiguousarray(parts[key][:, i]))
                lines = np.arange(start + 1, start + count + 1)
                size = sum(part.nbytes for part in parts.values())
                yield Chunk(found, BlockFaults(self._name, lines), size)
            with self._undamaged():
                for stream in streams.values():
                    stream.read(1)  # at its end, the checksum of the array is compared

    def _keys(self, columns: Columns) -> list[str]:
        return list(dict.fromkeys(self._where[name][0] for name in columns.all))

    def _of_array(self, key: str) -> Iterator[Problem]:
        array, received = self._arrays[key], ""
        fix = f'leave it out with data_options.drop=["{key}"], or write it again'
        if array.kind.hasobject:
            received = "Python objects, which could run code"
        elif _type(array.kind) is None:
            received = f"the type {array.kind}"
        elif not array.shape:
            received = "a single value"
        elif array.by_column and array.width > 1:
            received = "an array that is stored column by column"
            fix = "write np.ascontiguousarray(array)"
        elif array.row_bytes > _WIDEST:
            received = f"{array.row_bytes:,} bytes in each row"
        if received:
            yield Problem(
                f"the array {key!r} of {self._name} cannot be read as columns",
                received=received,
                expected="numbers, booleans, texts or dates of shape [rows, ...]",
                fix=fix,
            )

    def _header(self, member: str) -> _Array:
        with self._zip.open(member) as stream:
            return _read_header(stream)

    def _open(self, key: str, stack: ExitStack) -> IO[bytes]:
        stream = stack.enter_context(self._zip.open(key + _SUFFIX))
        _read_header(stream)
        return stream

    def _read(self, stream: IO[bytes], key: str, rows: int) -> np.ndarray:
        array = self._arrays[key]
        wanted = rows * array.row_bytes
        data = stream.read(wanted)
        if len(data) < wanted:
            raise ValueError(f"the array {key!r} ends early")
        values = np.frombuffer(data, array.kind).reshape(rows, array.width)
        return values.astype(array.kind.newbyteorder("="))

    @contextmanager
    def _undamaged(self) -> Iterator[None]:
        broken = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError)
        try:
            yield
        except (*broken, NotImplementedError, RuntimeError, MemoryError) as error:
            raise DataError(
                Problem(
                    f"{self._name} is damaged",
                    received=f"{type(error).__name__}: {error!s:.500}",
                    expected="an npz file that can be read to its end",
                    fix="write the file again with numpy.savez",
                )
            ) from error


def is_npz(head: bytes) -> bool:
    """Tell whether a file is a zip whose first member is an array."""
    length = int.from_bytes(head[26:28], "little")
    return head.startswith(b"PK\x03\x04") and head[30 : 30 + length].endswith(_SUFFIX.encode())


def _read_header(stream: IO[bytes]) -> _Array:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"an array of version {version}")
    shape, by_column, kind = read(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"the shape {shape}")
    return _Array(tuple(shape), kind, by_column)


def _type(kind: np.dtype) -> pa.DataType | None:
    """Return the arrow type of an array; None if there is none."""
    if kind.hasobject or kind.names:
        return None
    try:
        return pa.array(np.zeros(1, kind.newbyteorder("="))).type
    except (pa.ArrowException, ValueError, TypeError):
        return None
