"""The errors of the whole project, by what the reader of the message can do about them.

Every step ends with the exit code of the error it met (ARCHITECTURE.md, "Exit codes"), and the same
code, verdict and message go into failure.json. Codes 1 to 4 are the user's to mend; from 128 on the
infrastructure is at fault and an attempt may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the four parts every message of the project has.

    Attributes:
        what: What is wrong, as a sentence without a full stop.
        received: What was given.
        expected: What would have been right.
        fix: What to do now.
    """

    what: str
    received: object = None
    expected: object = None
    fix: str = ""

    def __str__(self) -> str:
        """Return the parts that are known, on one line."""
        parts = [f"{self.what}."]
        if self.received is not None:
            parts.append(f"Received: {self.received}.")
        if self.expected is not None:
            parts.append(f"Expected: {self.expected}.")
        if self.fix:
            parts.append(f"To do: {self.fix}{'' if self.fix.endswith('?') else '.'}")
        return " ".join(parts)


class Example(Problem):
    """One place where the problem before it shows; it is listed with it and not counted."""


class StepError(Exception):
    """A step failed for a known reason.

    Args:
        *problems: Everything that is wrong; a message lists them all, because a user who is told of
            one problem at a time starts the run once for each of them.
    """

    code: ClassVar[int] = 1
    verdict: ClassVar[str] = "failed"

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = problems
        super().__init__(*problems)

    def __str__(self) -> str:
        """Return one problem, or a numbered list; examples stand below the problem they show."""
        count = sum(not isinstance(problem, Example) for problem in self.problems)
        lines = [] if count == 1 else [f"{count} problems:"]
        number = 0
        for problem in self.problems:
            if isinstance(problem, Example):
                lines.append(f"     - {problem}")
            else:
                number += 1
                lines.append(str(problem) if count == 1 else f"  {number}. {problem}")
        return "\n".join(lines)

    @classmethod
    def raise_if(cls, problems: Iterable[Problem | str]) -> None:
        """Raise one error that holds all of `problems`, or return when there are none."""
        if found := tuple(problems):
            raise cls(*found)


class ConfigurationError(StepError):
    """A parameter, a credential or the user's code is wrong: nothing was started."""

    code = 2
    verdict = "user_error"


class DataError(StepError):
    """Data is missing, does not parse or does not match its manifest."""

    code = 3
    verdict = "user_error"


class StoreUnavailableError(StepError):
    """The store did not answer within the time it was given; a later attempt may succeed."""

    code = 145
    verdict = "store_unavailable"


class ObjectNotFoundError(DataError):
    """An object that was asked for by its key is not there."""


class ObjectExistsError(StepError):
    """A conditional create found the key taken: somebody else has decided already."""
