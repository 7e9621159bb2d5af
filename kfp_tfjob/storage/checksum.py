"""Computes CRC64NVME, the checksum that S3 stores verify, in base64 as S3 writes it.

Unlike SHA-256, the checksums of parts combine into the checksum of the whole, so an object that is
sent in parallel parts needs no second read. Called by `store.py`, `parts.py` and `body.py`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from awscrt import checksums

CHUNK = 1 << 20  # bytes; each thread that sends or reads an object holds one such piece


class Checksum:
    """A running CRC64NVME of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._value = self._size = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add the next bytes."""
        # awscrt takes every buffer; its annotation says bytes.
        self._value = checksums.crc64nvme(data, self._value)  # pyright: ignore[reportArgumentType]
        self._size += len(data)

    def append(self, following: Checksum) -> None:
        """Add the bytes that another checksum covers, without reading them again."""
        self._value = checksums.combine_crc64nvme(self._value, following._value, following._size)
        self._size += following._size

    @property
    def base64(self) -> str:
        """The value as in the header x-amz-checksum-crc64nvme: 8 bytes, big endian, base64."""
        return base64.b64encode(self._value.to_bytes(8, "big")).decode()


def crc64nvme(data: bytes | memoryview) -> str:
    """Return the base64 CRC64NVME of `data`."""
    checksum = Checksum()
    checksum.update(data)
    return checksum.base64


def of_all_bytes(head: Mapping[str, Any]) -> str:
    """Return an object's base64 CRC64NVME from a HEAD reply; empty if the reply lacks it.

    For an object sent in parts, SeaweedFS 4.34 returns a checksum over the parts' checksums, such
    as `XsbSZKaLXuk=-3`. It differs from the checksum of the bytes and counts as missing.
    """
    checksum = str(head.get("ChecksumCRC64NVME", ""))
    return "" if "-" in checksum else checksum


def file_crc64nvme(path: Path) -> str:
    """Return the base64 CRC64NVME of a file, read in pieces of 1 MiB."""
    checksum = Checksum()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            checksum.update(chunk)
    return checksum.base64


def file_sha256(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file, read in pieces of 1 MiB."""
    digest = hashlib.sha256()  # hashlib.file_digest takes half as long again for small files
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
