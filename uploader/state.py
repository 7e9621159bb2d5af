"""Writes the state of the sidecar for other programs, and why it ended."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kfp_tfjob.storage import files
from kfp_tfjob.storage.layout import UPLOADER, UPLOADER_STATE

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes puts its content into the pod's status
_MOST_PATHS = 20  # missing paths in a state


@dataclass(frozen=True)
class State:
    """One state.

    Attributes:
        verdict: `starting`, `mirroring`, `stored`, `not_stored`, `store_unavailable`, `fenced` or
            `user_error`.
        code: The exit code; 0 while the sidecar runs.
        message: The reason, as text.
        stored: Number of files that are in the store.
        missing: Some of the paths that are not in the store.
    """

    verdict: str
    code: int = 0
    message: str = ""
    stored: int = 0
    missing: Sequence[str] = ()


def write(folder: Path, state: State, ended: bool = False) -> None:
    """Write a state to `.uploader/state.json`, and the last one to the pod's termination log."""
    body = asdict(state) | {"missing": list(state.missing[:_MOST_PATHS])}
    text = json.dumps(body, indent=1) + "\n"
    path = folder / UPLOADER / UPLOADER_STATE
    try:
        path.parent.mkdir(exist_ok=True)
        files.write(path, text)
        if ended and "KUBERNETES_SERVICE_HOST" in os.environ and TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(text)
    except OSError as error:
        log.warning("the state cannot be written: %s", error)
