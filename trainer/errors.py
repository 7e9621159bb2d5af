"""Errors that end a training, besides `common.errors` (docs/failures.md, "Exit codes")."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from kfp_tfjob.common.errors import ConfigurationError, DataError, StepError
from kfp_tfjob.supervisor import exit_codes, termination_message


class NotFiniteError(StepError):
    """The loss became NaN or infinite."""

    code = exit_codes.NOT_FINITE
    verdict = "user_error"


class PeerLostError(StepError):
    """Another replica is gone, so collectives fail: every replica must restart."""

    code = exit_codes.PEER_LOST
    verdict = "peer_lost"


class NotStartedError(StepError):
    """This replica could not join the others."""

    code = exit_codes.NOT_STARTED
    verdict = "not_started"


class StoppedError(StepError):
    """A signal stopped the training; the state is saved."""

    code = exit_codes.STOPPED
    verdict = "stopped"


# Finds the message of another process in an error of TensorFlow.
_MESSAGE = re.compile(r"<kfp-tfjob (\d+): (.*?) kfp-tfjob>")
_LONGEST_MESSAGE = 2000  # characters; it travels in a header


def to_message(error: StepError, replica: str) -> str:
    """Return one line that makes the other processes of the job end with this error too."""
    text = " ".join(str(error).split())[:_LONGEST_MESSAGE]
    return f"<kfp-tfjob {error.code}: {replica}: {text} kfp-tfjob>"


def from_message(error: BaseException) -> StepError | None:
    """Return the error that another process reported, if it caused this one."""
    cause: BaseException | None = error
    while cause is not None:
        if match := _MESSAGE.search(str(cause)):
            own = (ConfigurationError, DataError, NotFiniteError, StoppedError)
            kinds = {kind.code: kind for kind in own}
            return kinds.get(int(match[1]), StepError)(match[2])
        cause = cause.__cause__ or cause.__context__
    return None


def write_termination_message(text: str) -> None:
    """Write the reason for this replica's end to the termination log, which the cluster shows."""
    # A full disk must not hide the exit code.
    with suppress(OSError):
        termination_message.write(termination_message.path_of(os.environ), text)
