"""Converts a column of strings to labels, and marks what is no label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.features.cells import LONGEST, decode, shown
from kfp_tfjob.features.types.number import parse_number, plain_number


def strings(column: pa.Array, name: str, faults: BlockFaults) -> pa.Array:
    """Return a binary column as text without blanks around it; mark values that are not UTF-8."""
    text, wrong = decode(column)
    faults.mark(wrong, "encoding", name, lambda i: shown(column, i))
    return text


def labels(
    text: pa.Array, name: str, nulls: frozenset[str], faults: BlockFaults
) -> tuple[list[str], np.ndarray]:
    """Return the distinct labels of a column, and the index of each row's label.

    Args:
        text: Strings without blanks around them, of shape [rows], or a dictionary of such
            strings; null means missing, and a dictionary has no null.
        name: The column.
        nulls: The texts that mean a missing value.
        faults: Where missing labels, long ones, and numbers too large for float32 are marked.

    Returns:
        The distinct texts, and int32 of shape [rows].
    """
    if isinstance(text, pa.DictionaryArray):
        encoded = text
    else:
        encoded = text.fill_null("").dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    absent = np.array([item in nulls or not item for item in texts], bool)
    long = np.array([len(item) > LONGEST for item in texts], bool)
    huge = np.array([plain_number(item) and parse_number(item) is None for item in texts], bool)
    if absent.any():
        faults.mark(absent[codes], "missing", name, lambda i: texts[codes[i]])
    if long.any():
        faults.mark(long[codes], "long", name, lambda i: texts[codes[i]])
    if huge.any():
        faults.mark(huge[codes], "not finite", name, lambda i: texts[codes[i]])
    return texts, codes
