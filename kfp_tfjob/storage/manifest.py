"""The manifest: the list of objects that proves a folder complete.

It is written last, so a folder with a manifest is complete. Readers trust a folder only through its
manifest. It holds no URI and no time: equal content has an equal manifest in every place. Called by
every program that completes a folder or trusts one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from kfp_tfjob.common.errors import DataError, Problem

from . import documents
from .address import S3Address
from .documents import LONGEST

FORMAT = "kfp-tfjob/manifest/1"


@dataclass(frozen=True, order=True)
class ManifestObject:
    """One object below the folder of the manifest.

    Attributes:
        key: Relative to that folder, with `/` between its parts.
        size: Bytes.
        crc64nvme: Base64, as S3 writes it.
        sha256: Hexadecimal, if it was computed anyway.
    """

    __pydantic_config__ = {"extra": "forbid"}
    key: str
    size: int
    crc64nvme: str
    sha256: str | None = None

    def check(self, address: S3Address, size: int, crc64nvme: str) -> None:
        """Check that an object in the store has the size and the checksum of this entry.

        Args:
            address: The object.
            size: Its size in bytes.
            crc64nvme: Its checksum in Base64, or any other text if it was not computed.

        Raises:
            DataError: One of the two differs.
        """
        if (size, crc64nvme) != (self.size, self.crc64nvme):
            raise DataError(
                Problem(
                    f"{address} does not match its manifest",
                    received=f"{size} bytes, CRC64NVME {crc64nvme}",
                    expected=f"{self.size} bytes, CRC64NVME {self.crc64nvme}",
                    fix="for a published version, use kfp-tfjob models rollback; otherwise,"
                    " delete this object and start a new run",
                    name="checksum-mismatch",
                )
            )


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        kind: `dataset`, `checkpoint`, `code`, `output` or `model`.
        objects: Every object, sorted by key.
        run_id: The run that wrote it; empty for a dataset, which belongs to no run.
        attempt: The attempt of that run; 0 for a kind without attempts.
        details: Facts that a reader needs before it opens an object, for example rows or the step.
    """

    kind: str
    objects: tuple[ManifestObject, ...]
    run_id: str = ""
    attempt: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: str,
        objects: Iterable[ManifestObject],
        run_id: str = "",
        attempt: int = 0,
        details: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Build a manifest from objects in any order."""
        return cls(
            kind,
            tuple(sorted(objects, key=lambda entry: entry.key)),
            run_id,
            attempt,
            details or {},
        )

    @property
    def size(self) -> int:
        """Total bytes of all objects."""
        return sum(entry.size for entry in self.objects)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as written; it identifies the whole content."""
        return sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON; equal manifests are equal bytes, because keys are sorted.

        Raises:
            DataError: The JSON is larger than readers accept.
        """
        body: dict[str, Any] = {"format": FORMAT, "kind": self.kind}
        if self.run_id:
            body |= {"run_id": self.run_id, "attempt": self.attempt}
        body["details"] = dict(self.details)
        body["objects"] = [
            {name: attribute for name, attribute in vars(entry).items() if attribute is not None}
            for entry in self.objects
        ]
        data = (json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
        if len(data) > LONGEST:
            raise DataError(
                Problem(
                    "there are too many files for one manifest",
                    received=f"{len(self.objects):,} files, a manifest of {len(data) >> 20} MiB",
                    expected=f"a manifest of at most {LONGEST >> 20} MiB",
                    fix="put them into fewer files, for example into archives",
                )
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: object = "manifest") -> Manifest:
        """Read a manifest back.

        Raises:
            DataError: The bytes are not a manifest of this format.
        """
        try:
            stored = documents.read(_StoredManifest, data)
            if stored.format != FORMAT:
                raise documents.InvalidDocumentError(f"format {stored.format!r:.100}")
            if stored.attempt < 0 or any(entry.size < 0 for entry in stored.objects):
                raise documents.InvalidDocumentError("a negative attempt or size")
        except documents.InvalidDocumentError as error:
            raise DataError(
                Problem(
                    f"{where} is not a manifest",
                    received=f"{type(error).__name__}: {error!s:.200}",
                    expected=f"JSON in the format {FORMAT}",
                    fix="delete everything below its prefix, and let the run write it again",
                )
            ) from error
        return cls.of(stored.kind, stored.objects, stored.run_id, stored.attempt, stored.details)


@dataclass(frozen=True, kw_only=True)
class _StoredManifest(Manifest):
    """A manifest with the format that its JSON names."""

    format: str
