"""Adds to problems with run parameters the command-line option that fixes them."""

from __future__ import annotations

import re
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
    value = problem.suggestion or _shape(str(problem.expected or ""))
    if problem.is_misnamed:
        if not problem.suggestion:
            return ""  # the key must be removed
        last, value = problem.suggestion, "VALUE"
    keys = [*above, last]
    # An item of a list cannot be set alone.
    name = ".".join(takewhile(lambda key: not key.isdigit(), keys))
    if name.partition(".")[0] not in PARAMETERS:
        return ""
    if len(name) < len(".".join(keys)):
        value = "[VALUE, ...]"
    short = PARAMETERS[name].option if name in PARAMETERS else None
    if short:
        return f"{short[0]} {value}"
    setting = f"{name}={value}"
    return f"--set '{setting}'" if value[0] in "[{" else f"--set {setting}"


def _shape(expected: str) -> str:
    """Return what a value looks like in JSON, with VALUE where the user's own goes."""
    if expected.startswith("a list "):
        return "[VALUE, ...]"
    if expected.startswith("an object of values"):
        return '{"NAME": VALUE, ...}'
    if match := re.match(r"an object with the keys (\w+)", expected):
        return f'{{"{match[1]}": VALUE, ...}}'
    return "VALUE"
