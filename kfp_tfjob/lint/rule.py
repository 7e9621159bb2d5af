"""Defines a rule: one possible fault of a manifest, its effect and its remedy."""

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
    """One place that breaks a rule.

    Attributes:
        path: The path in the document.
        what: The fault.
    """

    path: Path
    what: str


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        name: The name, as printed.
        severity: See Severity.
        reason: The effect of the fault and its cause.
        fix: The remedy.
        find: Yields every place that breaks the rule.
    """

    name: str
    severity: Severity
    reason: str
    fix: str
    find: Callable[[Job], Iterator[Found]]


def error(fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    """Turn the decorated function into a rule; its docstring is the reason.

    Args:
        fix: The remedy, for a person.
    """
    return _rule(Severity.ERROR, fix)


def warning(fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    """Turn the decorated function into a rule, as `error` does, with lower severity."""
    return _rule(Severity.WARNING, fix)


def _rule(severity: Severity, fix: str) -> Callable[[Callable[[Job], Iterator[Found]]], Rule]:
    def make(find: Callable[[Job], Iterator[Found]]) -> Rule:
        reason = " ".join((find.__doc__ or "").split())
        return Rule(find.__name__.replace("_", "-"), severity, reason, fix, find)

    return make
