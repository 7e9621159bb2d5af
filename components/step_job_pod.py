"""Does the work of a step in the pod of its Job, and tells the step how it ended.

The result goes to the store. A failure becomes the exit code and the termination message of the
pod, from which the step fails in the same way.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfp_tfjob.components.step import Failure, Step, failure_of, log_to_stdout, open_step
from kfp_tfjob.components.step_job import INPUTS
from kfp_tfjob.storage.errors import StepError

log = logging.getLogger(__name__)

_PLACES = ("run_id", "output_uri", "storage_endpoint", "storage_region", "task_key")
_TERMINATION_LOG = Path("/dev/termination-log")
_LONGEST = 4000  # bytes: Kubernetes cuts a termination message after 4096


def place_of(step: Step, endpoint: str, region: str, output_uri: str) -> dict[str, Any]:
    """Return the inputs with which the pod opens the same step."""
    places = (step.run_id, output_uri, endpoint, region, step.task_key)
    return dict(zip(_PLACES, places, strict=True))


def work(name: str, do: Callable[[Step, Mapping[str, Any]], None]) -> int:
    """Do the work of a step in this pod; return its exit code.

    Args:
        name: The step, for instance `prepare_data`.
        do: Does it, with the step and the inputs of the Job.
    """

    def open_and_do() -> None:
        inputs = json.loads(os.environ[INPUTS])
        do(open_step(name, *(inputs.pop(key) for key in _PLACES)), inputs)

    return ended(name, open_and_do)


def ended(name: str, do: Callable[[], None]) -> int:
    """Do something for a step in this pod; tell the step how it failed; return the exit code.

    Args:
        name: The step, for instance `prepare_data`.
        do: Does it.
    """
    # PID 1 ignores a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    log_to_stdout()
    try:
        do()
    except Exception as error:
        failure = failure_of(name, error)
        kind = logging.WARNING if isinstance(error, StepError) else logging.ERROR
        log.log(kind, "%s failed (%s): %s", name, failure.verdict, failure.message)
        _tell(failure)
        return failure.code
    return 0


def _tell(failure: Failure) -> None:
    """Write the failure for the step; the log has it too if it does not fit."""
    short = failure
    while len(short.to_bytes()) > _LONGEST:
        short = replace(short, message=f"{short.message[: len(short.message) * 9 // 10]}…")
    written = False
    with suppress(OSError):
        if _TERMINATION_LOG.is_file():  # Kubernetes makes it
            _TERMINATION_LOG.write_bytes(short.to_bytes())
            written = True
    if not written or short != failure:
        print(failure.to_line(), flush=True)


def told(message: str, lines: list[str]) -> Failure | None:
    """Return the failure that the pod has told, or None if it told none.

    Args:
        message: Its termination message.
        lines: The last lines of its log.
    """
    for text in reversed(lines):
        if whole := Failure.from_line(text):
            return whole
    try:
        return Failure.from_bytes(message.encode())
    except (ValueError, TypeError):
        return None
