"""Hashes texts into bins with SipHash-2-4, which TensorFlow has as `to_hash_bucket_strong`.

SipHash is specified in "SipHash: a fast short-input PRF" (Aumasson and Bernstein, 2012). The key is
the one of its test vectors, the bytes 00, 01, ... 0f. A text enters as its UTF-8 bytes, unchanged:
neither its case nor its accents are folded. The bin is the hash, an unsigned number of 64 bits,
modulo the number of bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def bins_of(texts: Sequence[bytes], bins: int) -> np.ndarray:
    """Return (texts,) int64, the bin of each text, from 0 to `bins` - 1.

    Args:
        texts: UTF-8 texts; hash each distinct text once, because long ones take long.
        bins: Number of bins.
    """
    return (siphash(texts) % np.uint64(bins)).astype(np.int64)


def siphash(texts: Sequence[bytes]) -> np.ndarray:
    """Return (texts,) uint64, the SipHash-2-4 of each text with KEY."""
    if not texts:
        return np.empty(0, np.uint64)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    # A text is filled up to whole words of 8 bytes; the last byte is its length modulo 256.
    words = lengths // 8 + 1
    filled = b"".join(text + bytes(7 - len(text) % 8) + bytes([len(text) & 0xFF]) for text in texts)
    stream = np.frombuffer(filled, "<u8")
    starts = np.cumsum(words) - words
    order = np.argsort(-words, kind="stable")  # so texts that have ended are at the end
    starts, left = starts[order], -words[order]
    state = np.empty((4, len(texts)), np.uint64)
    for row, constant in enumerate(_START):
        state[row] = constant ^ KEY[row % 2]
    for at in range(int(words.max())):
        active = state[:, : np.searchsorted(left, -at, "left")]
        word = stream[starts[: active.shape[1]] + at]
        active[3] ^= word
        _rounds(active, 2)
        active[0] ^= word
    state[2] ^= np.uint64(0xFF)
    _rounds(state, 4)
    hashes = np.empty(len(texts), np.uint64)
    hashes[order] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return hashes


def _rounds(state: np.ndarray, count: int) -> None:
    """Mix the (4, texts) uint64 state in place."""
    a, b, c, d = state
    for _ in range(count):
        a += b
        c += d
        b[:] = _rotated(b, 13) ^ a
        d[:] = _rotated(d, 16) ^ c
        a[:] = _rotated(a, 32)
        c += b
        a += d
        b[:] = _rotated(b, 17) ^ c
        d[:] = _rotated(d, 21) ^ a
        c[:] = _rotated(c, 32)


def _rotated(values: np.ndarray, bits: int) -> np.ndarray:
    return values << np.uint64(bits) | values >> np.uint64(64 - bits)
