"""Columns of lists of numbers, all of one length: each element becomes a column of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.header import MOST_COLUMNS, Columns, too_many_columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    CHUNK_VALUES,
    Chunk,
    Reader,
    undamaged,
)
from kfp_tfjob.features.cells import numeric
from kfp_tfjob.storage.errors import DataError, Problem

_LOOKED = 64  # rows


def element_names(name: str, length: int, file: str) -> list[str]:
    """Return the names of the columns of a list: name[0], name[1], and so on.

    Raises:
        DataError: The list alone has more than MOST_COLUMNS; a few bytes can claim any length.
    """
    if length > MOST_COLUMNS:
        raise DataError(too_many_columns(file, length))
    return [f"{name}[{i}]" for i in range(length)]


def with_lists(reader: Reader, name: str) -> Reader:
    """Return a reader whose columns of lists are one column for each element.

    Args:
        reader: The reader of the file.
        name: Name of the file, for messages.

    Raises:
        DataError: A name is not UTF-8, or there are too many elements.
    """
    with undamaged(name):
        repeated = Counter(reader.schema.names)  # names that are not UTF-8 fail here
    found = _WithLists(reader, name, {item for item, count in repeated.items() if count > 1})
    return found if found.where else reader


class _WithLists:
    """A reader whose columns of lists are one column for each element.

    The length is that of the type or, where lists may have any, that of the first list.

    Args:
        reader: The reader of the file.
        name: Name of the file, for messages.
        repeated: The names of several columns, which stay as they are: they are refused.
    """

    def __init__(self, reader: Reader, name: str, repeated: set[str]) -> None:
        self._reader, self._name = reader, name
        self._lengths = self._find_lengths(repeated)
        self.where: dict[str, tuple[str, int]] = {}  # of an element: its column and its index
        fields = []
        for field in reader.schema:
            length = self._lengths.get(field.name)
            if length is None:
                fields.append(field)
                continue
            for i, element in enumerate(element_names(field.name, length, name)):
                self.where[element] = (field.name, i)
                fields.append(pa.field(element, field.type.value_type))
            if len(fields) > MOST_COLUMNS:
                raise DataError(too_many_columns(name, len(fields)))
        self.schema = pa.schema(fields)

    def problems(self, columns: Columns) -> list[Problem]:
        """Return why the format cannot yield these columns."""
        return self._reader.problems(self._stored(columns))

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns chunk by chunk; a list of another length is a fault of its row."""
        names, wanted = columns.all, self._stored(columns)
        # A list is read as a whole, also if only some of its elements are wanted.
        values = sum(self._lengths.get(name, 1) for name in wanted.all)
        rows = max(1, min(rows, CHUNK_VALUES // values))
        for chunk in self._reader.chunks(wanted, rows):
            lists = {
                name: self._checked(name, chunk.columns[name], chunk.faults)
                for name in {self.where[name][0] for name in names if name in self.where}
            }
            found = {}
            for name in names:
                if name not in self.where:
                    found[name] = chunk.columns[name]
                    continue
                stored, i = self.where[name]
                found[name] = pc.list_element(lists[stored], i)
            yield Chunk(found, chunk.faults, chunk.size, chunk.nulls)

    def _stored(self, columns: Columns) -> Columns:
        """Return the columns as they are in the file."""
        features = dict.fromkeys(self.where.get(name, (name,))[0] for name in columns.all)
        label = self.where.get(columns.label, (columns.label,))[0]
        features.pop(label, None)
        return Columns(tuple(features), label)

    def _find_lengths(self, repeated: set[str]) -> dict[str, int]:
        found = {}
        for field in (field for field in self._reader.schema if field.name not in repeated):
            kind = field.type
            if pa.types.is_fixed_size_list(kind) and numeric(kind.value_type):
                found[field.name] = kind.list_size
            elif _is_list(kind) and numeric(kind.value_type):
                if length := self._first_length(field.name):
                    found[field.name] = length
        return found

    def _first_length(self, name: str) -> int:
        """Return the length of the first list that is not empty; 0 if there is none early on."""
        DataError.raise_if(self._reader.problems(Columns((), name)))
        for chunk in self._reader.chunks(Columns((), name), rows=_LOOKED):
            lengths = pc.drop_null(pc.list_value_length(chunk.columns[name]))
            filled = lengths.filter(pc.greater(lengths, 0))
            return filled[0].as_py() if len(filled) else 0
        return 0

    def _checked(self, name: str, column: pa.Array, faults: BlockFaults) -> pa.Array:
        """Mark lists of another length, and return the column with nulls in their place."""
        if pa.types.is_fixed_size_list(column.type):
            return column
        lengths = pc.list_value_length(column).fill_null(self._lengths[name])
        wrong = pc.not_equal(lengths, self._lengths[name]).to_numpy(zero_copy_only=False)
        if not wrong.any():
            return column
        faults.mark(wrong, "list", name, lambda i: f"{lengths[i].as_py():,} elements")
        return column.take(pa.array(np.where(wrong, -1, np.arange(len(column))), mask=wrong))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)
