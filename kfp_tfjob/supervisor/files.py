"""Reads and writes the small files that a pod's processes exchange.

A file may be absent, half written or damaged. Called by the supervisor and the uploader.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping


def read_text(path: Path) -> str:
    """Return a file's content; empty if it does not exist."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_json(path: Path) -> Mapping[str, Any]:
    """Return a file's JSON object; an empty one if the file is missing or does not contain one."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file by an atomic rename.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)
