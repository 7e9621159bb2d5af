"""Writes TFRecord files as programs with TensorFlow do, without TensorFlow."""

import struct
from collections.abc import Mapping, Sequence

import google_crc32c
import numpy as np

from kfp_tfjob.components.prepare_data.source.readers.tfrecord_table import masked

_FLOATS, _INTEGERS = 2, 3  # the fields of tf.train.Feature


def framed(record: bytes) -> bytes:
    """Return a record with its length and checksums."""
    length = struct.pack("<Q", len(record))
    crcs = [struct.pack("<I", masked(google_crc32c.value(part))) for part in (length, record)]
    return length + crcs[0] + record + crcs[1]


def example(lists: Mapping[str, Sequence[float]]) -> bytes:
    """Return a tf.train.Example; lists of ints become Int64List, others FloatList."""
    entries = b""
    for name, values in lists.items():
        if all(isinstance(value, int) for value in values):
            packed = b"".join(_varint(value % 2**64) for value in values)
            feature = _field(_INTEGERS, _field(1, packed))
        else:
            feature = _field(_FLOATS, _field(1, np.array(values, "<f4").tobytes()))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def rows(features: np.ndarray, labels: np.ndarray) -> bytes:
    """Return a file of rows with the lists `features` and `label`."""
    pairs = zip(features.tolist(), labels.tolist(), strict=True)
    return b"".join(
        framed(example({"features": list(map(float, row)), "label": [label]}))
        for row, label in pairs
    )


def _varint(value: int) -> bytes:
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content
