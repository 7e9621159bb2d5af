"""Codes raw columns inside the exported model, as coding.py does for training.

number               float64, NaN is a gap; float32 in a table of numbers without gaps
boolean              string, '' is a gap, and so is a text that is neither true nor false
category, text       string, '' is a gap
date                 int64, microseconds since 1970, UTC; -2**63 is a gap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from kfp_tfjob.features import coding, text_hash
from kfp_tfjob.features.coding import Coded, Coding, Column

_TYPES = {coding.NUMBER: tf.float64, coding.DATE: tf.int64}
# The smallest float32 that TensorFlow does not replace by 0, and where rounding up to it begins.
_SMALLEST, _ROUNDED_UP = 2.0**-126, 2.0**-126 - 2.0**-150
_TRUTH = {text: 1.0 for text in coding.TRUE_TEXTS} | {text: 0.0 for text in coding.FALSE_TEXTS}


def type_of(feature: Coded) -> tf.DType:
    """Return the type of a raw column."""
    if feature.kind == coding.NUMBER and feature.missing is None:
        return tf.float32
    return _TYPES.get(feature.kind, tf.string)


# (batch, n), and the places of its columns in a packed row.
_Block = tuple[tf.Tensor, np.ndarray]


class RawColumns(tf.Module):
    """Turns raw columns into packed rows; its tables are saved with the model.

    The columns of one type become one tensor, so the graph of thousands of columns has as few nodes
    as that of one: TensorFlow takes time and memory for every node whenever it loads a model.

    Args:
        declared: The coding.
    """

    def __init__(self, declared: Coding) -> None:
        super().__init__()
        self._coding = declared
        self._truth = _table(_TRUTH, tf.float64, float("nan"))
        # The vocabularies of all categories; the number of the column precedes each string.
        categories = (it for it in declared.features if it.kind == coding.CATEGORY)
        codes = {
            f"{number}:{text}": coding.FIRST + place
            for number, feature in enumerate(categories)
            for place, text in enumerate(feature.vocabulary)
        }
        self._vocabulary = _table(codes, tf.int64, coding.UNKNOWN)

    def pack(self, columns: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return (batch, packed columns) float32.

        Args:
            columns: (batch,) of `type_of`, in the order of the features.

        Raises:
            tf.errors.InvalidArgumentError: A column whose rule is `fail` has a gap.
        """
        groups: dict[tuple[str, int], list[tuple[Coded, Column, tf.Tensor]]] = {}
        for item in zip(self._coding.features, self._coding.columns, columns, strict=True):
            groups.setdefault((item[0].kind, item[0].bins), []).append(item)
        blocks: list[_Block] = []
        for (kind, bins), group in groups.items():
            features, places = [item[0] for item in group], [item[1] for item in group]
            values = tf.stack([item[2] for item in group], axis=1)
            starts = np.array([place.start for place in places])
            if values.dtype == tf.float32:  # without gaps, as they are
                blocks.append((values, starts))
            elif kind == coding.CATEGORY:
                blocks.append((self._categories(values), starts))
            elif kind == coding.TEXT:
                hashed = tf.strings.to_hash_bucket_strong(values, bins, text_hash.KEY)
                blocks.append((tf.where(values == "", np.int64(0), hashed + 1), starts))
            elif kind == coding.DATE:
                blocks += _dates(features, places, values)
            else:
                if kind == coding.BOOLEAN:
                    values = self._truth.lookup(tf.strings.lower(tf.strings.strip(values)))
                blocks += _numbers(features, places, values)
        packed = tf.concat([tf.cast(block, tf.float32) for block, _ in blocks], axis=1)
        order = np.argsort(np.concatenate([places for _, places in blocks]))
        return packed if (order[:-1] < order[1:]).all() else tf.gather(packed, order, axis=1)

    def _categories(self, values: tf.Tensor) -> tf.Tensor:
        """Return (batch, n) int64, the codes of strings of the n categories."""
        numbers = tf.constant([f"{number}:" for number in range(values.shape[1])])
        keys = tf.strings.join([tf.broadcast_to(numbers, tf.shape(values)), values])
        return tf.where(values == "", np.int64(coding.GAP), self._vocabulary.lookup(keys))


def _numbers(
    features: Sequence[Coded], places: Sequence[Column], values: tf.Tensor
) -> list[_Block]:
    filled, gaps = _filled(features, places, values, tf.math.is_nan(values))
    size = tf.abs(filled)
    filled = tf.where(size < _SMALLEST, tf.sign(filled) * _SMALLEST, filled)
    starts = np.array([place.start for place in places])
    return [(tf.where(size < _ROUNDED_UP, np.float64(0), filled), starts), *gaps]


def _dates(features: Sequence[Coded], places: Sequence[Column], values: tf.Tensor) -> list[_Block]:
    gap = tf.equal(values, tf.constant(coding.NO_DATE, tf.int64))
    filled, gaps = _filled(features, places, values, gap)
    origins = tf.constant([feature.origin for feature in features], tf.int64)
    *parts, whole, rest = coding.date_parts(filled, origins)
    parts.append(tf.cast(whole, tf.float64) + tf.cast(rest, tf.float64) / coding.SECOND)
    starts = np.array([place.start for place in places])
    return [*((part, starts + at) for at, part in enumerate(parts)), *gaps]


def _filled(
    features: Sequence[Coded], places: Sequence[Column], values: tf.Tensor, gaps: tf.Tensor
) -> tuple[tf.Tensor, list[_Block]]:
    """Return (batch, n) the values with gaps filled, and the indicators where there are some."""
    stand_ins = [feature.missing.value if feature.missing else None for feature in features]
    if strict := [at for at, value in enumerate(stand_ins) if value is None]:
        refusals = [str(coding.gap_refused(features[at].name)) for at in strict]
        refused = tf.reduce_any(tf.gather(gaps, strict, axis=1), axis=0)
        named = tf.boolean_mask(tf.constant(refusals), refused)
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(refused), [named])]):
            values = tf.identity(values)
    constants = tf.constant([0 if it is None else it for it in stand_ins], values.dtype)
    known = [at for at, it in enumerate(features) if it.missing and it.missing.indicator]
    indicators = (
        [
            (
                tf.gather(gaps, known, axis=1),
                np.array([places[at].start + places[at].width - 1 for at in known]),
            )
        ]
        if known
        else []
    )
    return tf.where(gaps, constants, values), indicators


def _table(
    values: Mapping[str, float], dtype: tf.DType, default: float
) -> tf.lookup.StaticHashTable:
    # A table of TensorFlow cannot be empty; no text is looked up by this one.
    keys = [text.encode() for text in values] or [b""]
    found = tf.constant(list(values.values()) or [default], dtype)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), found)
    return tf.lookup.StaticHashTable(initializer, tf.constant(default, dtype))
