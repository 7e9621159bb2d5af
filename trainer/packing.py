"""Packs the rows of Arrow tables with the operations of the exported model.

Called by encoded_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import tensorflow as tf

from kfp_tfjob.features.cells import as_array
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.raw_columns import ColumnGroup, RawColumns, type_of

_SLICE = 65_536  # rows that are packed at a time
_SLICE_BYTES = 1 << 20  # of strings; the graph needs about 30 times as much for those of free text
_DEVICE = "CPU"  # a GPU would compute other bits, and its memory is for the model


class Packing:
    """Packs tables, with an operation for each group of columns.

    Args:
        coding: The encoding of the table.
    """

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        with tf.device(_DEVICE):
            groups = () if coding.is_identity else RawColumns(coding).groups
        self._groups = [_ColumnsOfType(group) for group in groups]

    def pack(self, table: pa.Table) -> Iterator[np.ndarray]:
        """Yield slices of (rows, packed columns) float32, in the order of the rows."""
        features = self._coding.features
        columns = [as_array(table[feature.name]) for feature in features]
        strings = {
            group: group.encode_strings([columns[at] for at in group.features])
            for group in self._groups
            if group.is_string and len(table)
        }
        for start in range(0, len(table), _SLICE):
            parts = [column.slice(start, _SLICE) for column in columns]
            packed = np.empty((len(parts[0]), self._coding.width), np.float32)
            if self._coding.is_identity:
                for at, part in enumerate(parts):
                    packed[:, at] = part.to_numpy(zero_copy_only=False)
            for group in self._groups:
                if group in strings:
                    strings[group].gather(start, packed)
                else:
                    group.encode_numbers([parts[at] for at in group.features], packed)
            yield packed


class _ColumnsOfType:
    """The operation for the columns of one type."""

    def __init__(self, group: ColumnGroup) -> None:
        self._group = group
        self._columns = group.declared.columns
        self._type = type_of(self._columns[0])
        signature = [tf.TensorSpec([None, len(self._columns)], self._type)]
        self._pack = tf.function(group.pack, input_signature=signature, autograph=False)

    @property
    def features(self) -> Sequence[int]:
        """The places of its columns among the features."""
        return self._group.declared.features.tolist()

    @property
    def is_string(self) -> bool:
        """Whether the operation takes strings."""
        return self._type == tf.string

    def encode_numbers(self, columns: Sequence[pa.Array], packed: np.ndarray) -> None:
        """Write the packed columns of some rows into (rows, packed columns)."""
        kind = self._type.as_numpy_dtype
        pairs = zip(self._columns, columns, strict=True)
        values = np.stack([feature.raw_values(column).astype(kind) for feature, column in pairs], 1)
        blocks = self._run(values)
        for at, place in enumerate(self._group.places):
            packed[:, place] = blocks[:, at]

    def encode_strings(self, columns: Sequence[pa.Array]) -> _EncodedStrings:
        """Encode each string of some columns once: that takes half the time of all rows."""
        distinct, codes = zip(*map(_distinct, columns), strict=True)
        most = max(map(len, distinct))
        # Filled up with a string that occurs, because a column may refuse an empty one; the
        # shortest one, because texts may be long.
        filled = [strings + [min(strings, key=len)] * (most - len(strings)) for strings in distinct]
        rows = np.array(filled, object).T
        encoded = np.concatenate([self._run(rows[at]) for at in _slices(rows)])
        return _EncodedStrings(encoded, codes, self._group.places, self._group.sources)

    def _run(self, values: np.ndarray) -> np.ndarray:
        with tf.device(_DEVICE):
            return self._pack(tf.constant(values, self._type)).numpy()


@dataclass(frozen=True)
class _EncodedStrings:
    """The packed values of the distinct strings of some columns.

    Attributes:
        packed: (strings, packed columns) float32.
        codes: (rows,) the string of each row, by column.
        places: The packed columns.
        sources: The column of each packed column.
    """

    packed: np.ndarray
    codes: Sequence[np.ndarray]
    places: np.ndarray
    sources: np.ndarray

    def gather(self, start: int, packed: np.ndarray) -> None:
        """Write the packed columns of the rows from `start` on into (rows, packed columns)."""
        for at, (place, source) in enumerate(zip(self.places, self.sources, strict=True)):
            codes = self.codes[source][start : start + len(packed)]
            packed[:, place] = self.packed[codes, at]


def _slices(rows: np.ndarray) -> Iterator[slice]:
    """Yield slices of (rows, columns) strings of about _SLICE_BYTES, or of _SLICE rows."""
    sizes = np.array([sum(map(len, strings)) for strings in rows], np.int64)
    ends, start = np.cumsum(sizes), 0
    while start < len(rows):
        before = ends[start] - sizes[start]
        end = int(np.searchsorted(ends, before + _SLICE_BYTES, "right"))
        end = min(max(end, start + 1), start + _SLICE)
        yield slice(start, end)
        start = end


def _distinct(column: pa.Array) -> tuple[list[bytes], np.ndarray]:
    """Return the distinct strings of a column, b"" for a missing one, and the code of each row."""
    if not isinstance(column, pa.DictionaryArray):
        column = column.cast(pa.string()).dictionary_encode()
    strings = [text.encode() for text in column.dictionary.to_pylist()]
    codes = column.indices
    if codes.null_count:
        codes = codes.fill_null(len(strings))
        strings.append(b"")
    return strings, codes.to_numpy()
