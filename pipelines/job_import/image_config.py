"""Asks an installed tool for the program that an image starts by itself."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = 120  # of a registry
# In this order: docker needs no registry, but has only images that were pulled.
_TOOLS: dict[str, Sequence[str]] = {
    "docker": ("docker", "image", "inspect", "--format", "{{json .Config}}"),
    "skopeo": ("skopeo", "inspect", "--config"),
    "crane": ("crane", "config"),
}
_PREFIXES = {"skopeo": "docker://"}


@dataclass(frozen=True)
class ImageConfig:
    """What an image says about its program.

    Attributes:
        entrypoint: ENTRYPOINT.
        cmd: CMD: the program without an ENTRYPOINT, otherwise its arguments.
        tool: The program that told it.
    """

    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    tool: str


def inspect(image: str) -> ImageConfig | None:
    """Return an image's program, or None if no installed tool can tell it."""
    for tool in _TOOLS:
        if not shutil.which(tool):
            continue
        command = _command(tool, image)
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_SECONDS, check=True, stdin=subprocess.DEVNULL
            )
            document = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # another tool may be logged in, or have the image
        config = document.get("config", document) if isinstance(document, dict) else None
        if isinstance(config, dict):
            return ImageConfig(
                _texts(config.get("Entrypoint")), _texts(config.get("Cmd")), " ".join(command)
            )
    return None


def to_type(image: str) -> str:
    """Return the command that shows an image's program, for a person."""
    tool = next((it for it in _TOOLS if shutil.which(it)), "docker")
    pull = f"docker pull {shlex.quote(image)} && " if tool == "docker" else ""
    return pull + shlex.join(_command(tool, image))


def _command(tool: str, image: str) -> list[str]:
    return [*_TOOLS[tool], _PREFIXES.get(tool, "") + image]


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
