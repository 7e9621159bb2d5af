"""The supervisor's side of the flush barrier: waits until the sidecar has stored all output.

Before that, it writes completion.json, the record that the command of an attempt succeeded.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping

from kfp_tfjob.supervisor import exit_codes
from kfp_tfjob.supervisor.files import read_json, write_json
from kfp_tfjob.supervisor.log import log
from kfp_tfjob.supervisor.output_files import inventory
from kfp_tfjob.supervisor.stop import Stop

# In OUTPUT_DIR.
COMPLETION = "completion.json"
FOLDER = ".uploader"
REQUEST = "flush-request.json"
REPLY = "flush-reply.json"
# A longer silence looks like a hang.
_PROGRESS_SECONDS = 5.0
_POLL_SECONDS = 0.05
_MOST_PATHS = 20


def record_completion(output: Path, run_id: str, attempt: int) -> None:
    """Write the record into OUTPUT_DIR.

    Raises:
        OSError: It cannot be written.
    """
    output.mkdir(parents=True, exist_ok=True)
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(output / COMPLETION, {"run_id": run_id, "attempt": attempt, "finished": finished})


def pass_barrier(output: Path, attempt: int, seconds: float, stop: Stop) -> tuple[int, str]:
    """Ask the sidecar whether everything is stored, and wait for its answer.

    Args:
        output: OUTPUT_DIR.
        attempt: The attempt that asks.
        seconds: How long to wait.
        stop: Ends the wait.

    Returns:
        The exit code of the replica, and why it is not 0.

    Raises:
        OSError: The folder cannot be read or written.
    """
    (output / FOLDER).mkdir(exist_ok=True)
    request = _ask(output, attempt)
    number = request["files"]
    log(f"waiting until {number} files are stored, at most {seconds:.0f} s")
    start = said = time.monotonic()
    reply: Mapping[str, Any] = {}
    while not stop:
        found = read_json(output / FOLDER / REPLY)
        if found.get("id") == request["id"]:
            reply = found
        if reply.get("state") == "stored":
            log(f"all {number} files are stored after {time.monotonic() - start:.1f} s")
            return exit_codes.DONE, ""
        if reply.get("state") == "impossible":
            return exit_codes.CONFIGURATION, f"the output cannot be stored: {_state(reply, number)}"
        now = time.monotonic()
        if now - start >= seconds:
            return exit_codes.NOT_STORED, _not_stored(reply, number, seconds)
        if now - said >= _PROGRESS_SECONDS:
            said = now
            log(f"still waiting: {_state(reply, number)}")
            # A process that the command left behind, and that cannot be killed, may still write.
            if inventory(output) != (number, request["inventory"]):
                request = _ask(output, attempt)
                number = request["files"]
                log(f"{output} has changed: it now contains {number} files")
        time.sleep(_POLL_SECONDS)
    return exit_codes.STOPPED, "stopped by a signal while the output was being stored"


def _ask(output: Path, attempt: int) -> Mapping[str, Any]:
    """Write the request to the sidecar, and return it."""
    number, digest = inventory(output)
    request = {"id": uuid.uuid4().hex, "attempt": attempt, "files": number, "inventory": digest}
    write_json(output / FOLDER / REQUEST, request)
    return request


def _not_stored(reply: Mapping[str, Any], number: int, seconds: float) -> str:
    missing = [str(path) for path in reply.get("missing") or []]
    more = f" and {len(missing) - _MOST_PATHS} more" if missing[_MOST_PATHS:] else ""
    shown = ", ".join(missing[:_MOST_PATHS]) + more
    return (
        f"the model is trained but not stored after {seconds:.0f} s: {_state(reply, number)}."
        + (f" Missing: {shown}." if missing else "")
        + " Fix: check the store; the next attempt starts from the newest stored checkpoint."
    )


def _state(reply: Mapping[str, Any], number: int) -> str:
    if not reply:
        return "the sidecar has not responded"
    stored = reply.get("stored")
    done = len(stored) if isinstance(stored, list) else stored
    message = reply.get("message")
    return f"{done} of {number} files are stored" + (f" ({message})" if message else "")
