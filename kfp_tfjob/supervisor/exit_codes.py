"""Defines every exit code of the project: its name, number and meaning.

After codes 1 to 4, the user must act. Codes from 128 to 192 are failures of the infrastructure, and
a new attempt may follow; 128 + n means that signal n ended the process. Higher codes are a
program's own: 255 is what it returns with exit(-1).
"""

from __future__ import annotations

import signal

DONE = 0
FAILED = 1
CONFIGURATION = 2
DATA = 3
NOT_FINITE = 4
ORPHANED = 5
SURPASSED = 6
PEER_LOST = 138
NOT_STARTED = 142
STOPPED = 143
NOT_STORED = 145

MEANING = {
    DONE: "done",
    FAILED: "failed for an unexpected reason; see the log",
    CONFIGURATION: "wrong configuration, credentials or model code",
    DATA: "data is missing or corrupt",
    NOT_FINITE: "the loss is not finite",
    ORPHANED: "orphaned: saved and stopped",
    SURPASSED: "lost the race: other runs were promoted first, twice; no step fails with this code",
    PEER_LOST: "another replica was lost",
    NOT_STARTED: "not started, for example because another replica did not appear in time",
    STOPPED: "stopped by a signal",
    NOT_STORED: "not stored: the store was unreachable until the deadline",
}
# A program returns these only on purpose, for a mistake that the user must correct.
USER_ERRORS = (CONFIGURATION, DATA, NOT_FINITE)
# A replica returns these because of an event elsewhere, so they do not show the cause.
CONSEQUENCES = (PEER_LOST, STOPPED)


# Only a step of the pipeline exits with these; from a replica they are the user program's codes.
_STEP_CODES = (SURPASSED,)


def of_replica(code: int) -> str:
    """Return the meaning of a replica's exit code; empty for a code of the user's own program."""
    return "" if code in _STEP_CODES else MEANING.get(code, "")


def is_of_signal(code: int) -> bool:
    """Return whether a signal may have ended a process with this code: Linux has 64 signals."""
    return 128 < code <= 192


def meaning_of(code: int) -> str:
    """Return the meaning of a command's exit code, even if it is not in the table."""
    if meaning := of_replica(code):
        return meaning
    if is_of_signal(code):
        names = {int(each): each.name for each in signal.Signals}
        cause = " (out of memory, for example)" if code == 128 + signal.SIGKILL else ""
        return f"the command was terminated by {names.get(code - 128, code - 128)}{cause}"
    return f"the command exited with code {code}"
