"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kfp_tfjob.storage.errors import Problem, StepError


class State(StrEnum):
    """What a finding means for a run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        state: Whether a run can start; `warn` is for what may be wrong, or could not be checked.
        text: What was found.
        fix: What to do now; empty for `ok`.
    """

    state: State
    text: str
    fix: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(text: str) -> Finding:
    """Return a finding that needs no fix."""
    return Finding(State.OK, text)


def warn(text: str, fix: str = "") -> Finding:
    """Return a finding that may be wrong."""
    return Finding(State.WARN, text, fix)


def fail(text: str, fix: str = "") -> Finding:
    """Return a finding that hinders every run."""
    return Finding(State.FAIL, text, fix)


def failures(
    problems: Iterable[Problem | str], state: State = State.FAIL, fix: str = ""
) -> Iterator[Finding]:
    """Yield a finding for each problem.

    Args:
        problems: For instance those of an error.
        state: What they mean.
        fix: For a problem without one.
    """
    for problem in problems:
        if isinstance(problem, str):
            yield Finding(state, problem, fix)
            continue
        parts = problem.parts
        text = parts["what"]
        text += f": {parts['received']}" if "received" in parts else ""
        text += f" (expected: {parts['expected']})" if "expected" in parts else ""
        yield Finding(state, text, parts.get("fix") or fix)


def said(check: Check) -> list[Finding]:
    """Return what a check finds; an error is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except StepError as error:
        found.extend(failures(error.problems))
    except Exception as error:
        found.append(fail(f"{type(error).__name__}: {error}. This is a bug in kfp-tfjob doctor"))
    return found
