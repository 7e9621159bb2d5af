"""The manifest: what makes a directory of objects one complete, provable thing.

It is the last object written, so its presence is completeness. Readers trust a directory only
through it. It holds no URI and no time: equal content has an equal manifest wherever it lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from storage.errors import DataError, Problem

NAME = "manifest.json"
FORMAT = "kfp-tfjob/manifest/1"


@dataclass(frozen=True, order=True)
class ManifestObject:
    """One object below the directory of the manifest.

    Attributes:
        key: Relative to that directory, with `/` between its parts.
        size: Bytes.
        crc64nvme: Base64, as S3 writes it.
        sha256: Hexadecimal, where it was computed anyway.
    """

    key: str
    size: int
    crc64nvme: str
    sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        kind: `dataset`, `checkpoint`, `code`, `output` or `model`.
        objects: Every object, sorted by key.
        run_id: The run that wrote it; empty for a dataset, which belongs to no run.
        attempt: The attempt of that run; 0 where there are none.
        details: What a reader needs before it opens an object, for instance rows or the step.
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
            kind, tuple(sorted(objects, key=lambda item: item.key)), run_id, attempt, details or {}
        )

    @property
    def size(self) -> int:
        """Bytes of all objects together."""
        return sum(item.size for item in self.objects)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as it is written: it names the whole content."""
        return sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the one way this manifest is written: sorted keys, newline at the end."""
        body: dict[str, Any] = {"format": FORMAT, "kind": self.kind}
        if self.run_id:
            body |= {"run_id": self.run_id, "attempt": self.attempt}
        body["details"] = dict(self.details)
        body["objects"] = [
            {name: value for name, value in vars(item).items() if value is not None}
            for item in self.objects
        ]
        return (json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: object = "manifest") -> Manifest:
        """Read a manifest back.

        Raises:
            DataError: The bytes are not a manifest of this format.
        """
        try:
            body = json.loads(data)
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']!r}")
            objects = [ManifestObject(**item) for item in body["objects"]]
            return cls.of(
                str(body["kind"]),
                objects,
                body.get("run_id", ""),
                int(body.get("attempt", 0)),
                body["details"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                Problem(
                    f"{where} is not a manifest",
                    received=f"{type(error).__name__}: {error}",
                    expected=f"JSON of the format {FORMAT}",
                    fix="remove the prefix it stands in and let the run write it again",
                )
            ) from error
