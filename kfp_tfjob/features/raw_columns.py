"""Encodes raw columns inside the exported model, as coding.py does for training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from kfp_tfjob.features.coding import Coding, Group, gap_refused
from kfp_tfjob.features.types.base import NO_DATE, ColumnType


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
        self._groups = declared.groups
        self._tables = [group.type.tables(group.columns) for group in declared.groups]

    def pack(self, columns: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return (batch, packed columns) float32.

        Args:
            columns: (batch,) of `type_of`, in the order of the features.

        Raises:
            tf.errors.InvalidArgumentError: A column whose rule is `fail` has a missing value.
        """
        blocks, places = [], []
        for group, tables in zip(self._groups, self._tables, strict=True):
            values = tf.stack([columns[at] for at in group.features], axis=1)
            values = group.type.stored(values, tuple(tables))
            if group.may_lack:
                values, gaps = _filled(group, values)
                if len(group.indicated):
                    blocks.append(tf.gather(gaps, group.indicated, axis=1))
                    places.append(group.indicators)
            blocks += group.type.graph(group.columns, values, tuple(tables))
            places += [group.starts + at for at in range(len(group.type.parts))]
        packed = tf.concat([tf.cast(block, tf.float32) for block in blocks], axis=1)
        order = np.argsort(np.concatenate(places))
        return packed if (order[:-1] < order[1:]).all() else tf.gather(packed, order, axis=1)


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
