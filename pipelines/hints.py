"""Adds to problems with run parameters the command-line option that fixes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.storage.errors import Problem, StepError, ended


def with_hints(error: StepError) -> str:
    """Return the message of an error; each problem with a run parameter ends with what to type."""
    problems = (
        replace(
            problem, fix=f"{ended(problem.fix)} Type {option}" if problem.fix else f"type {option}"
        )
        if isinstance(problem, Problem) and (option := _option(problem))
        else problem
        for problem in error.problems
    )
    return str(StepError(*problems, notes=error.notes))


def _option(problem: Problem) -> str:
    *above, last = problem.path.split(".")
    value = problem.suggestion or "VALUE"
    if problem.is_misnamed:
        if not problem.suggestion:
            return ""  # the key must be removed
        last, value = problem.suggestion, "VALUE"
    # An item of a list cannot be set alone.
    name = ".".join(takewhile(lambda key: not key.isdigit(), [*above, last]))
    if name.partition(".")[0] not in PARAMETERS:
        return ""
    short = PARAMETERS[name].option if name in PARAMETERS else None
    return f"{short[0]} {value}" if short else f"--set {name}={value}"
