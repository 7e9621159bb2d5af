"""Hashes strings as the rows' hashes do (components/prepare_data/hashes.py).

Called by prepare_data and by the column types of strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np


def bytes_hash(content: bytes, salt: str = "") -> int:
    """Return the BLAKE2b of bytes with a key: 64 bits, read as a big-endian number."""
    return int.from_bytes(blake2b(content, digest_size=8, key=salt.encode()).digest(), "big")


def string_hashes(strings: Iterable[str], salt: str = "") -> np.ndarray:
    """Return the `bytes_hash` of the UTF-8 of each string: uint64 of shape [strings]."""
    return np.array([bytes_hash(string.encode(), salt) for string in strings], np.uint64)
