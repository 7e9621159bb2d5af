"""Codes raw columns inside the exported model, as trainer/coding.py does for training.

number               float64, NaN is a gap
boolean              string, '' is a gap, and so is a text that is neither true nor false
category, text       string, '' is a gap
date                 int64, microseconds since 1970, UTC; -2**63 is a gap
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from kfp_tfjob.trainer import coding, text_hash
from kfp_tfjob.trainer.coding import Coded, Coding

TYPES = {
    coding.NUMBER: tf.float64,
    coding.BOOLEAN: tf.string,
    coding.CATEGORY: tf.string,
    coding.TEXT: tf.string,
    coding.DATE: tf.int64,
}
# The smallest float32 that TensorFlow does not replace by 0, and where rounding up to it begins.
_SMALLEST, _ROUNDED_UP = 2.0**-126, 2.0**-126 - 2.0**-150
_TRUTH = {text: 1.0 for text in coding.TRUE_TEXTS} | {text: 0.0 for text in coding.FALSE_TEXTS}


class RawColumns(tf.Module):
    """Turns raw columns into packed rows; its tables are saved with the model.

    Args:
        declared: The coding.
    """

    def __init__(self, declared: Coding) -> None:
        super().__init__()
        self._coding = declared
        self._truth = _table(_TRUTH, tf.float64, float("nan"))
        # A list of its own, because TensorFlow saves what it finds in attributes.
        self._vocabularies = [
            _table(_codes(feature), tf.int64, coding.UNKNOWN)
            for feature in declared.features
            if feature.kind == coding.CATEGORY
        ]

    def pack(self, columns: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return (batch, packed columns) float32.

        Args:
            columns: (batch,) of TYPES, in the order of the features.

        Raises:
            tf.errors.InvalidArgumentError: A column whose rule is `fail` has a gap.
        """
        vocabularies = iter(self._vocabularies)
        numbers, codes = [], []
        for feature, values in zip(self._coding.features, columns, strict=True):
            if feature.kind == coding.CATEGORY:
                found = next(vocabularies).lookup(values)
                codes.append(tf.where(values == "", np.int64(coding.GAP), found))
            elif feature.kind == coding.TEXT:
                bins = tf.strings.to_hash_bucket_strong(values, feature.bins, text_hash.KEY)
                codes.append(tf.where(values == "", np.int64(0), bins + 1))
            elif feature.kind == coding.DATE:
                numbers += _date(feature, values)
            else:
                if feature.kind == coding.BOOLEAN:
                    values = self._truth.lookup(tf.strings.lower(tf.strings.strip(values)))
                numbers += _number(feature, values)
        packed = [*numbers, *(tf.cast(item, tf.float32) for item in codes)]
        return tf.stack(packed, axis=1)


def _number(feature: Coded, values: tf.Tensor) -> list[tf.Tensor]:
    filled, gaps = _filled(feature, values, tf.math.is_nan(values), tf.float64)
    size = tf.abs(filled)
    filled = tf.where(size < _SMALLEST, tf.sign(filled) * _SMALLEST, filled)
    return [tf.cast(tf.where(size < _ROUNDED_UP, np.float64(0), filled), tf.float32), *gaps]


def _date(feature: Coded, values: tf.Tensor) -> list[tf.Tensor]:
    gap = tf.equal(values, tf.constant(coding.NO_DATE, tf.int64))
    filled, gaps = _filled(feature, values, gap, tf.int64)
    origin = tf.constant(feature.origin, tf.int64)
    *parts, whole, rest = coding.date_parts(filled, origin)
    seconds = tf.cast(whole, tf.float64) + tf.cast(rest, tf.float64) / coding.SECOND
    return [*(tf.cast(part, tf.float32) for part in (*parts, seconds)), *gaps]


def _filled(
    feature: Coded, values: tf.Tensor, gaps: tf.Tensor, dtype: tf.DType
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the values with gaps filled, and the indicator where there is one."""
    missing = feature.missing
    if missing is None or missing.value is None:
        message = str(coding.gap_refused(feature.name))
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(gaps), [message])]):
            filled = tf.identity(values)
    else:
        filled = tf.where(gaps, tf.constant(missing.value, dtype), values)
    has = missing is not None and missing.indicator
    return filled, [tf.cast(gaps, tf.float32)] if has else []


def _codes(feature: Coded) -> dict[str, int]:
    return {text: coding.FIRST + place for place, text in enumerate(feature.vocabulary)}


def _table(values: dict[str, float], dtype: tf.DType, default: float) -> tf.lookup.StaticHashTable:
    # A table of TensorFlow cannot be empty; no text is looked up by this one.
    keys = [text.encode() for text in values] or [b""]
    found = tf.constant(list(values.values()) or [default], dtype)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), found)
    return tf.lookup.StaticHashTable(initializer, tf.constant(default, dtype))
