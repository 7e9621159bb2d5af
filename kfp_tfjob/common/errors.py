"""The errors of the whole project, grouped by what the user can do about them.

Every step exits with the code of its error (docs/failures.md, "Exit codes"), and the same
code, verdict and message go into failure.json. The user fixes codes 1 to 4. From 128 on, the
infrastructure is at fault and a new attempt may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from kfp_tfjob.supervisor import exit_codes

from .escaping import line, lines
from .formatting import counted

_T = TypeVar("_T")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the four parts of every message in the project.

    Attributes:
        what: What is wrong, as a sentence without a full stop.
        received: The value that was given.
        expected: What would be right.
        fix: What to do now.
        path: The parameter or variable that is wrong, down to the key: `train_options.seed`.
        suggestion: What to type instead, if one correction is likely.
        name: The section of docs/failures.md that explains it; empty if the message says it all.
    """

    what: str
    received: object = None
    expected: object = None
    fix: str = ""
    path: str = ""
    suggestion: str = ""
    name: str = ""

    @property
    def is_misnamed(self) -> bool:
        """Whether the last key of `path` is wrong, and not its value."""
        # A key may contain dots.
        return bool(self.path) and f".{self.path}".endswith(f".{self.received}")

    @property
    def parts(self) -> dict[str, str]:
        """The parts that are set, by their name in `LABELS`, each fit for one line."""
        parts = {"what": self.what, "received": self.received, "expected": self.expected}
        parts |= {"fix": self.fix} if self.fix else {}
        # Messages of other libraries may break lines between words.
        return {
            name: line(" ".join(str(part).splitlines()))
            for name, part in parts.items()
            if part is not None
        }

    def __str__(self) -> str:
        """Return the parts that are set, on one line."""
        return " ".join(f"{LABELS[name]}{ended(text)}" for name, text in self.parts.items())


LABELS = {"what": "", "received": "Received: ", "expected": "Expected: ", "fix": "Fix: "}


def ended(text: str) -> str:
    """Return a part of a message with a full stop, unless it is a question."""
    return text if text.endswith("?") else f"{text}."


class Example(Problem):
    """An example of the problem before it; it is listed but not counted."""


def first(problems: Sequence[Problem], most: int, ending: str) -> list[Problem]:
    """Return the first `most` problems, and one more that counts the remaining ones.

    Args:
        problems: All problems.
        most: How many to list.
        ending: Follows the count, for example `columns are like these`.
    """
    omitted = len(problems) - most
    summary = [Problem(f"{omitted:,} more {ending}")] if omitted > 0 else []
    return [*problems[:most], *summary]


class StepError(Exception):
    """A step failed for a known reason.

    Args:
        *problems: Everything that is wrong. One message lists all problems, so that the user does
            not need one run for each.
        notes: Warnings, which are no reason to fail.
    """

    code: ClassVar[int] = exit_codes.FAILED
    verdict: ClassVar[str] = "failed"
    last_lines: tuple[str, ...] = ()  # of the program that failed

    def __init__(self, *problems: Problem | str, notes: Iterable[str] = ()) -> None:
        self.problems, self.notes = problems, tuple(notes)
        self.remarks = tuple(f"Warning: {line(note)}." for note in self.notes)
        super().__init__(*problems)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error by its problems, because subclasses take other arguments than these."""
        return _unpickle, (type(self), self.problems, self.notes)

    def __str__(self) -> str:
        """Return one problem, or a numbered list; examples follow their problem."""
        count = sum(not isinstance(problem, Example) for problem in self.problems)
        alone = count == 1 and not self.notes
        warnings = f", {counted(len(self.notes), 'warning')}" if self.notes else ""
        message = [] if alone else [f"{counted(count, 'problem')}{warnings}:"]
        number = 0
        for problem in self.problems:
            if isinstance(problem, Example):
                message.append(f"     - {problem}")
            else:
                number += 1
                sentence = _printable(problem)
                message.append(sentence if alone else f"  {number}. {sentence}")
        message += [f"  {remark}" for remark in self.remarks]
        return "\n".join(message)

    @property
    def as_problems(self) -> list[Problem]:
        """All problems; a string becomes a problem without a remedy."""
        return [
            problem if isinstance(problem, Problem) else Problem(problem)
            for problem in self.problems
        ]

    @property
    def first(self) -> str:
        """The first problem's `what`, for one line; kubeflow/pods.py shows it as `trouble`."""
        problem = self.problems[0]
        return problem.what if isinstance(problem, Problem) else str(problem)

    @property
    def problem_name(self) -> str:
        """The name of the first problem that has one; empty if none has."""
        return next((problem.name for problem in self.as_problems if problem.name), "")

    @property
    def received(self) -> str:
        """The `received` parts of all problems, separated by semicolons."""
        return "; ".join(
            str(problem.received) for problem in self.problems if isinstance(problem, Problem)
        )

    @classmethod
    def raise_if(cls, problems: Iterable[Problem | str]) -> None:
        """Raise one error with all of `problems`, or return if there are none."""
        if all_problems := tuple(problems):
            raise cls(*all_problems)


def _unpickle(
    kind: type[StepError], problems: tuple[Problem | str, ...], notes: tuple[str, ...]
) -> StepError:
    # The constructor of `kind` may take other arguments, so only the base class's runs.
    error = kind.__new__(kind)
    StepError.__init__(error, *problems, notes=notes)
    return error


def _printable(problem: Problem | str) -> str:
    return lines(problem) if isinstance(problem, str) else str(problem)


class ConfigurationError(StepError):
    """A parameter, a credential or the user's code is wrong; nothing was started."""

    code = exit_codes.CONFIGURATION
    verdict = "user_error"


class Problems(list[Problem | str]):
    """Collects the problems of several inputs, to report all of them at once."""

    def of(self, check: Callable[[], _T]) -> _T | None:
        """Return the result of a check, or None after adding its problems."""
        try:
            return check()
        except ConfigurationError as error:
            self += error.problems
            return None


class DataError(StepError):
    """Data is missing, does not parse or does not match its manifest."""

    code = exit_codes.DATA
    verdict = "user_error"


class SurpassedError(StepError):
    """Another run was promoted first, so this run must be evaluated again."""

    code = exit_codes.SURPASSED
    verdict = "surpassed"


class StoreUnavailableError(StepError):
    """The store did not respond in time; a later attempt may succeed."""

    code = exit_codes.NOT_STORED
    verdict = "store_unavailable"


class NoRoomError(StoreUnavailableError):
    """The store answers but rejects writes; it may be out of space for the bucket."""


class ObjectNotFoundError(DataError):
    """No object has the requested key."""


class ObjectExistsError(StepError):
    """A conditional create found an existing object, because another writer was first."""
