"""The errors of the whole project, by what the reader of the message can do about them.

Every step exits with the code of its error (ARCHITECTURE.md, "Exit codes"), and the same
code, verdict and message go into failure.json. The user fixes codes 1 to 4; from 128 on the
infrastructure is at fault and an attempt may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kfp_tfjob.storage.text import line, lines
from kfp_tfjob.storage.words import counted
from kfp_tfjob.supervisor import exit_codes


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the four parts every message of the project has.

    Attributes:
        what: What is wrong, as a sentence without a full stop.
        received: What was given.
        expected: What would have been right.
        fix: What to do now.
        path: The parameter or variable that is wrong, down to the key: `train_options.seed`.
        suggestion: What to type instead of what was received, where one thing is likely.
    """

    what: str
    received: object = None
    expected: object = None
    fix: str = ""
    path: str = ""
    suggestion: str = ""

    @property
    def is_misnamed(self) -> bool:
        """Whether the last key of `path` is wrong, and not its value."""
        return bool(self.path) and self.path.rpartition(".")[2] == self.received

    @property
    def parts(self) -> dict[str, str]:
        """The parts that are known, by name, each fit for one line."""
        known = {"what": self.what, "received": self.received, "expected": self.expected}
        known |= {"fix": self.fix} if self.fix else {}
        # Words that were broken over lines, as in what other libraries say, stay words.
        return {
            name: line(" ".join(str(value).splitlines()))
            for name, value in known.items()
            if value is not None
        }

    def __str__(self) -> str:
        """Return the parts that are known, on one line, whatever was received."""
        return " ".join(f"{LABELS[name]}{ended(text)}" for name, text in self.parts.items())


LABELS = {"what": "", "received": "Received: ", "expected": "Expected: ", "fix": "Fix: "}


def ended(text: str) -> str:
    """Return a part of a message with the mark that ends it."""
    return text if text.endswith("?") else f"{text}."


class Example(Problem):
    """One place where the problem before it shows; it is listed with it and not counted."""


def first(problems: Sequence[Problem], most: int, others: str) -> list[Problem]:
    """Return the first problems, and one that counts the others.

    Args:
        problems: All of them.
        most: How many to show.
        others: What the others are: `columns are like these`.
    """
    counted_out = len(problems) - most
    rest = [Problem(f"{counted_out:,} more {others}")] if counted_out > 0 else []
    return [*problems[:most], *rest]


class StepError(Exception):
    """A step failed for a known reason.

    Args:
        *problems: Everything that is wrong; a message lists them all, because a user who is told of
            one problem at a time starts the run once for each of them.
        notes: What a person should know besides, and what is no reason to fail.
    """

    code: ClassVar[int] = exit_codes.FAILED
    verdict: ClassVar[str] = "failed"

    def __init__(self, *problems: Problem | str, notes: Iterable[str] = ()) -> None:
        self.problems, self.notes = problems, tuple(notes)
        super().__init__(*problems)

    def __str__(self) -> str:
        """Return one problem, or a numbered list; examples stand below the problem they show."""
        count = sum(not isinstance(problem, Example) for problem in self.problems)
        alone = count == 1 and not self.notes
        warnings = f", {counted(len(self.notes), 'warning')}" if self.notes else ""
        said = [] if alone else [f"{counted(count, 'problem')}{warnings}:"]
        number = 0
        for problem in self.problems:
            if isinstance(problem, Example):
                said.append(f"     - {problem}")
            else:
                number += 1
                said.append(_said(problem) if alone else f"  {number}. {_said(problem)}")
        said += [f"  Warning: {line(note)}." for note in self.notes]
        return "\n".join(said)

    @classmethod
    def raise_if(cls, problems: Iterable[Problem | str]) -> None:
        """Raise one error that holds all of `problems`, or return when there are none."""
        if found := tuple(problems):
            raise cls(*found)


def _said(problem: Problem | str) -> str:
    return lines(problem) if isinstance(problem, str) else str(problem)


class ConfigurationError(StepError):
    """A parameter, a credential or the user's code is wrong: nothing was started."""

    code = exit_codes.CONFIGURATION
    verdict = "user_error"


class DataError(StepError):
    """Data is missing, does not parse or does not match its manifest."""

    code = exit_codes.DATA
    verdict = "user_error"


class SurpassedError(StepError):
    """Another run was promoted first: nothing is wrong, and this one has to be judged again."""

    code = exit_codes.SURPASSED
    verdict = "surpassed"


class StoreUnavailableError(StepError):
    """The store did not answer within the time it was given; a later attempt may succeed."""

    code = exit_codes.NOT_STORED
    verdict = "store_unavailable"


class ObjectNotFoundError(DataError):
    """An object that was asked for by its key is not there."""


class ObjectExistsError(StepError):
    """A conditional create found the key taken: another writer was first."""
