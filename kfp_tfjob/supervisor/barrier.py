"""The supervisor's side of the flush barrier: waits until the sidecar has stored all output.

Before that, it writes completion.json, the record that the command of an attempt succeeded. Called
by `supervise.py`.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping

from . import exit_codes
from .files import read_json, write_json
from .log import log
from .output_files import inventory
from .stop import Stop

# File names in OUTPUT_DIR, and in its folder FOLDER.
COMPLETION = "completion.json"
FOLDER = ".uploader"
REQUEST = "flush-request.json"
REPLY = "flush-reply.json"
# Without a log line for longer than this, the wait looks like a hang.
_PROGRESS_SECONDS = 5.0
_POLL_SECONDS = 0.05  # short, because every run waits here once
_MOST_PATHS = 20  # in a message; Kubernetes truncates it after 4,096 bytes


def record_completion(output: Path, run_id: str, attempt: int) -> None:
    """Write completion.json into OUTPUT_DIR: the command of this attempt succeeded.

    Raises:
        OSError: It cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(output / COMPLETION, {"run_id": run_id, "attempt": attempt, "finished": finished})


def pass_barrier(output: Path, attempt: int, seconds: float, stop: Stop) -> tuple[int, str]:
    """Wait until the sidecar has stored all output.

    Args:
        output: OUTPUT_DIR.
        attempt: The attempt that asks.
        seconds: How long to wait.
        stop: Ends the wait.

    Returns:
        The replica's exit code, and the reason if it is not 0.

    Raises:
        OSError: The folder cannot be read or written.
    """
    (output / FOLDER).mkdir(exist_ok=True)
    request = _ask(output, attempt)
    file_count = request["files"]
    log(f"waiting until {file_count} files are stored, at most {seconds:.0f} s")
    start = last_log = time.monotonic()
    reply: Mapping[str, Any] = {}
    while not stop:
        answer = read_json(output / FOLDER / REPLY)
        if answer.get("id") == request["id"]:
            reply = answer
        if reply.get("state") == "stored":
            log(f"all {file_count} files are stored after {time.monotonic() - start:.1f} s")
            return exit_codes.DONE, ""
        if reply.get("state") == "impossible":
            return (
                exit_codes.CONFIGURATION,
                f"the output cannot be stored: {_state(reply, file_count)}",
            )
        now = time.monotonic()
        if now - start >= seconds:
            return exit_codes.NOT_STORED, _not_stored(reply, file_count, seconds)
        if now - last_log >= _PROGRESS_SECONDS:
            last_log = now
            log(f"still waiting: {_state(reply, file_count)}")
            # A process that the command left behind, and that cannot be killed, may still write.
            if inventory(output) != (file_count, request["inventory"]):
                request = _ask(output, attempt)
                file_count = request["files"]
                log(f"{output} has changed: it now contains {file_count} files")
        time.sleep(_POLL_SECONDS)
    return exit_codes.STOPPED, "stopped by a signal while the output was being stored"


def _ask(output: Path, attempt: int) -> Mapping[str, Any]:
    """Write the request to the sidecar, with the number and hash of the files; return it."""
    file_count, digest = inventory(output)
    request = {"id": uuid.uuid4().hex, "attempt": attempt, "files": file_count, "inventory": digest}
    write_json(output / FOLDER / REQUEST, request)
    return request


def _not_stored(reply: Mapping[str, Any], file_count: int, seconds: float) -> str:
    missing = [str(path) for path in reply.get("missing") or []]
    omitted = f" and {len(missing) - _MOST_PATHS} more" if missing[_MOST_PATHS:] else ""
    paths = ", ".join(missing[:_MOST_PATHS]) + omitted
    return (
        f"the model is trained but not stored after {seconds:.0f} s: {_state(reply, file_count)}."
        + (f" Missing: {paths}." if missing else "")
        + " Fix: check the store; the next attempt starts from the newest stored checkpoint."
    )


def _state(reply: Mapping[str, Any], file_count: int) -> str:
    if not reply:
        return "the sidecar has not responded"
    stored = reply.get("stored")
    stored_count = len(stored) if isinstance(stored, list) else stored
    message = reply.get("message")
    return f"{stored_count} of {file_count} files are stored" + (f" ({message})" if message else "")
