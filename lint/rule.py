"""A rule: one thing that a manifest may have wrong, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kfp_tfjob.lint.document import Path
from kfp_tfjob.lint.job import Job


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"  # the job will not run, ends with the wrong result, or leaves something behind
    WARNING = "warning"  # that may happen, depending on the cluster or the program


@dataclass(frozen=True)
class Found:
    """One place where a rule does not hold.

    Attributes:
        path: Where in the document.
        what: What is there.
        correct: Makes the safe correction in the document and says what it did; None where a
            person has to decide.
    """

    path: Path
    what: str
    correct: Callable[[], str] | None = None


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: As it is printed.
        severity: See Severity.
        reason: What happens, and why.
        fix: What to do about it.
        find: Yields every place where it does not hold.
    """

    name: str
    severity: Severity
    reason: str
    fix: str
    find: Callable[[Job], Iterator[Found]]


def error(fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    """Make a rule of the decorated function; its docstring is the reason.

    Args:
        fix: What a person does about it.
    """
    return _rule(Severity.ERROR, fix)


def warning(fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    """Make a rule of the decorated function, as `error` does, of lower severity."""
    return _rule(Severity.WARNING, fix)


def _rule(severity: Severity, fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    def make(find: Callable[[Job], Iterator[Found]]) -> Rule:
        reason = " ".join((find.__doc__ or "").split())
        return Rule(find.__name__.replace("_", "-"), severity, reason, fix, find)

    return make
