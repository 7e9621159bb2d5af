"""The file of image references: what `make images PUSH=1` pushed, with digests.

`kfp-tfjob compile --registry` reads it, so that a compiled pipeline names exactly these images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kfp_tfjob.options.images import VERSION, serving_in, tools_in, trainer_in
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# In a checkout; an installed package has none until --references names one.
REFERENCES = Path(__file__).resolve().parents[1] / "images" / "references.json"


@dataclass(frozen=True)
class References:
    """The images of one version in one registry, with digests where they are known."""

    version: str
    registry: str
    images: Mapping[str, str] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        """Whether the digests are known."""
        return all("@" in image for image in self.images.values())

    def image(self, name: str) -> str:
        """Return an image.

        Raises:
            ConfigurationError: It was not built.
        """
        if name not in self.images:
            raise ConfigurationError(
                Problem(
                    f"the image references do not list {name}",
                    received=", ".join(sorted(self.images)) or "none",
                    fix=f"make images PUSH=1 GPU=1 REGISTRY={self.registry}",
                )
            )
        return self.images[name]

    def write(self, file: Path) -> None:
        """Write the file."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> References:
        """Read a file.

        Raises:
            ConfigurationError: It cannot be read, or is not such a file.
        """
        try:
            found = cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                Problem(
                    "the image references cannot be read",
                    received=f"{file}: {error}",
                    expected="images/references.json of `make images PUSH=1`",
                    fix="push the images again, or omit --references to use tags",
                )
            ) from None
        return found

    @classmethod
    def in_registry(cls, registry: str, file: Path | None = None) -> References:
        """Return the images of this version in a registry, with digests if they are known.

        Args:
            registry: The registry and path; empty for that of the file.
            file: Of `make images PUSH=1`; None for the one of this checkout, if it is there and
                is of this registry and version.

        Raises:
            ConfigurationError: `file` is of another registry or version, or cannot be read.
        """
        registry = registry.rstrip("/")
        if file is None and not REFERENCES.is_file():
            return cls.by_tag(registry)
        found = cls.read(file or REFERENCES)
        wanted = (VERSION, registry or found.registry)
        if (found.version, found.registry) == wanted:
            return found
        if file is None:
            return cls.by_tag(registry)
        raise ConfigurationError(
            Problem(
                "the image references are for other images",
                received=f"{file}: version {found.version} in {found.registry}",
                expected=f"version {wanted[0]} in {wanted[1]}",
                fix=f"make images PUSH=1 REGISTRY={wanted[1]}, or omit --references to use tags",
            )
        )

    @classmethod
    def by_tag(cls, registry: str) -> References:
        """Return the images of this version in a registry by their tags."""
        images = {
            "tools": tools_in(registry),
            "trainer": trainer_in(registry),
            "trainer-gpu": trainer_in(registry, gpu=True),
            "serving": serving_in(registry),
        }
        return cls(VERSION, registry, images)
