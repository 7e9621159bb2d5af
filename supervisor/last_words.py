"""Writes the last words of a replica: why it ends, in the file that the cluster shows."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from kfp_tfjob.supervisor.environment import TERMINATION_LOG

_MOST_BYTES = 4096  # Kubernetes keeps no more


def place(variables: Mapping[str, str]) -> Path:
    """Return the file for last words."""
    return Path(variables.get(TERMINATION_LOG) or "/dev/termination-log")


def leave(path: Path, text: str) -> None:
    """Write last words, if the cluster has created the file for them.

    Raises:
        OSError: The file cannot be written.
    """
    if path.exists():
        path.write_bytes(text.encode(errors="backslashreplace")[:_MOST_BYTES])
