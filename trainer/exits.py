"""The ends of a training beside those of `storage.errors` (ARCHITECTURE.md, "Exit codes")."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import StepError


class NotFiniteError(StepError):
    """The loss became NaN or infinite."""

    code = 4
    verdict = "user_error"


class PeerLostError(StepError):
    """Another replica is gone, and the collective with it: every replica has to start again."""

    code = 138
    verdict = "peer_lost"


class NotStartedError(StepError):
    """This replica could not join the others."""

    code = 142
    verdict = "not_started"


class StoppedError(StepError):
    """A signal asked for the end; the state is saved."""

    code = 143
    verdict = "stopped"


def leave_last_words(text: str) -> None:
    """Write why this replica ends to where the cluster shows it (the termination log)."""
    path = Path(os.environ.get("TERMINATION_LOG") or "/dev/termination-log")
    if path.exists() and os.access(path, os.W_OK):
        path.write_text(text[:4096])
