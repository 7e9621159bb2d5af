"""Writes the reason for a replica's end where the cluster and the sidecar read it.

Called by the supervisor, the trainer and the uploader when they end.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping

from .barrier import FOLDER
from .environment import TERMINATION_LOG, Environment
from .files import write_json
from .log import log

END = "end.json"  # in FOLDER, for the sidecar, which stores it
_MOST_BYTES = 4096  # Kubernetes keeps no more


def path_of(variables: Mapping[str, str]) -> Path:
    """Return the file for the message."""
    return Path(variables.get(TERMINATION_LOG) or "/dev/termination-log")


def write(path: Path, text: str, ending: str = "") -> None:
    """Write the message, if the cluster has created the file for it.

    Args:
        path: The file.
        text: The message, which is truncated if it is too long.
        ending: What follows it, in ASCII; never truncated.

    Raises:
        OSError: The file cannot be written.
    """
    if path.exists():
        content = text.encode(errors="backslashreplace")[: _MOST_BYTES - len(ending)]
        path.write_bytes(content + ending.encode())


def record(environment: Environment, end: Mapping[str, Any]) -> None:
    """Write the end of the chief for its sidecar.

    Args:
        environment: The environment, with the output folder.
        end: `code`, the `signal` to stop or 0, `reason`, `seconds`, and the last `step` or 0.
    """
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    identity = {"run_id": environment.run_id, "attempt": environment.attempt, "time": time}
    assert environment.output_dir
    try:
        (environment.output_dir / FOLDER).mkdir(parents=True, exist_ok=True)
        write_json(environment.output_dir / FOLDER / END, dict(identity, **end))
    except OSError as error:
        log(f"cannot record how the command ended: {error}")
