"""Writes completion.json: the record that the command of an attempt succeeded."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from kfp_tfjob.supervisor.files import write_json

COMPLETION = "completion.json"


def record(output: Path, run_id: str, attempt: int) -> None:
    """Write the record into OUTPUT_DIR.

    Raises:
        OSError: It cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(output / COMPLETION, {"run_id": run_id, "attempt": attempt, "finished": finished})
