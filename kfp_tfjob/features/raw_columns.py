"""Encodes raw columns with TensorFlow: in the exported model, and in the trainer for its rows.

Called by the trainer's `export.py` and `packing.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from .coding import Coding, Group, gap_refused
from .types.base import NO_DATE, ColumnType


def type_of(feature: ColumnType) -> tf.DType:
    """Return the type of a raw column."""
    return tf.as_dtype(feature.raw_type)


class RawColumns(tf.Module):
    """Turns raw columns into packed rows; its tables are saved with the model.

    The columns of one type become one tensor, so a graph has as few nodes for thousands of columns
    as for one. TensorFlow takes time and memory for every node whenever it loads a model.

    Args:
        declared: The coding.
    """

    def __init__(self, declared: Coding) -> None:
        super().__init__()
        self.groups = tuple(map(ColumnGroup, declared.groups))

    def pack(self, columns: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return (batch, packed columns) float32.

        Args:
            columns: (batch,) of `type_of`, in the order of the features.

        Raises:
            tf.errors.InvalidArgumentError: A column whose rule is `fail` has a missing value.
        """
        packed = tf.concat(
            [
                group.pack(tf.stack([columns[at] for at in group.declared.features], axis=1))
                for group in self.groups
            ],
            axis=1,
        )
        order = np.argsort(np.concatenate([group.places for group in self.groups]))
        return packed if (order[:-1] < order[1:]).all() else tf.gather(packed, order, axis=1)


class ColumnGroup(tf.Module):
    """Columns of one type, which are encoded together.

    Args:
        declared: The group of the coding.

    Attributes:
        places: The packed columns that `pack` returns.
        sources: The column of the group that each of them encodes.
    """

    def __init__(self, declared: Group) -> None:
        super().__init__()
        self.declared = declared
        self._tables = declared.type.tables(declared.columns)
        parts, columns = range(len(declared.columns[0].endings)), np.arange(len(declared.columns))
        self.places = np.concatenate([declared.indicators, *(declared.starts + at for at in parts)])
        self.sources = np.concatenate([declared.indicated, *(columns for _ in parts)])

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Return (rows, `places`) float32 of raw values, (rows, columns) of `type_of`.

        Raises:
            tf.errors.InvalidArgumentError: A column whose rule is `fail` has a missing value.
        """
        group, blocks = self.declared, []
        # TensorFlow has wrapped the tables, so that they are saved with the model.
        tables = tuple(self._tables)
        values = group.type.stored(values, tables)
        if group.may_lack:
            values, gaps = _filled(group, values)
            if len(group.indicated):
                blocks.append(tf.gather(gaps, group.indicated, axis=1))
        blocks += group.type.graph(group.columns, values, tables)
        return tf.concat([tf.cast(block, tf.float32) for block in blocks], axis=1)


def _filled(group: Group, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (batch, n) the values without missing ones, and which are missing."""
    gaps = tf.math.is_nan(values) if values.dtype.is_floating else tf.equal(values, NO_DATE)
    if len(group.strict):
        refusals = [str(gap_refused(group.columns[at].name)) for at in group.strict]
        refused = tf.reduce_any(tf.gather(gaps, group.strict, axis=1), axis=0)
        named = tf.boolean_mask(tf.constant(refusals), refused)
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(refused), [named])]):
            values = tf.identity(values)
    return tf.where(gaps, tf.constant(group.stand_ins, values.dtype), values), gaps
