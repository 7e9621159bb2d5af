"""Errors that end a training, besides `common.errors` (docs/failures.md, "Exit codes")."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from kfp_tfjob.common.docs_page import address_line
from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem, StepError
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
_MESSAGE = re.compile(r"<kfp-tfjob (\d+)((?: [\w-]+)?): (.*?) kfp-tfjob>")
_LONGEST_MESSAGE = 2000  # characters; it travels in a header


def to_message(error: StepError, replica: str) -> str:
    """Return one line that makes the other processes of the job end with this error too."""
    text = " ".join(str(error).split())[:_LONGEST_MESSAGE]
    header = f"{error.code} {error.problem_name}".strip()
    return f"<kfp-tfjob {header}: {replica}: {text} kfp-tfjob>"


def from_message(error: BaseException) -> StepError | None:
    """Return the error that another process reported, if it caused this one."""
    cause: BaseException | None = error
    while cause is not None:
        if match := _MESSAGE.search(str(cause)):
            own = (ConfigurationError, DataError, NotFiniteError, StoppedError)
            kinds = {kind.code: kind for kind in own}
            name, text = match[2].strip(), match[3]
            # A problem ends its sentence itself.
            problem = Problem(text.removesuffix("."), name=name) if name else text
            return kinds.get(int(match[1]), StepError)(problem)
        cause = cause.__cause__ or cause.__context__
    return None


def write_termination_message(text: str, name: str = "") -> None:
    """Write the reason for this replica's end to the termination log, which the cluster shows.

    Args:
        text: The reason.
        name: The name of the problem; the launcher reads it from the last line.
    """
    ending = f"\n{address_line(name)}" if name else ""
    # A full disk must not hide the exit code.
    with suppress(OSError):
        termination_message.write(termination_message.path_of(os.environ), text, ending)
