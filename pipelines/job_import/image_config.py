"""Asks an installed tool for the program that a container image starts by itself.

A job may leave its command to the image, but the supervisor needs the command. Reading it from a
registry here would need each registry's login, which these tools have. Called by
`main_container.py`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = 120  # a slow registry; a person waits
# Tried in this order: docker does not need the registry, but has only images that were pulled.
_TOOLS: dict[str, Sequence[str]] = {
    "docker": ("docker", "image", "inspect", "--format", "{{json .Config}}"),
    "skopeo": ("skopeo", "inspect", "--config"),
    "crane": ("crane", "config"),
}
_PREFIXES = {"skopeo": "docker://"}


@dataclass(frozen=True)
class ImageConfig:
    """The program in an image's configuration.

    Attributes:
        entrypoint: ENTRYPOINT.
        cmd: CMD: without an ENTRYPOINT the program, otherwise the program's arguments.
        tool: The command line of the tool that was asked.
    """

    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    tool: str


def inspect(image: str) -> ImageConfig | None:
    """Return an image's program; None if no installed tool can read it."""
    for tool in _TOOLS:
        if not shutil.which(tool):
            continue
        command = _command(tool, image)
        try:
            process = subprocess.run(
                command, capture_output=True, timeout=_SECONDS, check=True, stdin=subprocess.DEVNULL
            )
            document = json.loads(process.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            continue  # another tool may be logged in, or have the image
        config = document.get("config", document) if isinstance(document, dict) else None
        if isinstance(config, dict):
            return ImageConfig(
                _strings(config.get("Entrypoint")), _strings(config.get("Cmd")), " ".join(command)
            )
    return None


def to_type(image: str) -> str:
    """Return the command line with which a person can look up an image's program."""
    tool = next((name for name in _TOOLS if shutil.which(name)), "docker")
    pull = f"docker pull {shlex.quote(image)} && " if tool == "docker" else ""
    return pull + shlex.join(_command(tool, image))


def _command(tool: str, image: str) -> list[str]:
    return [*_TOOLS[tool], _PREFIXES.get(tool, "") + image]


def _strings(elements: object) -> tuple[str, ...]:
    return tuple(map(str, elements)) if isinstance(elements, list) else ()
