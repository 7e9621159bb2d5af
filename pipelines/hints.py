"""Adds to problems with run parameters the command-line option that fixes them.

Problems name the parameter, such as `train_options.seed`, because most users set it in a form. Only
the command line knows its options. Called by `cli.py` when a command fails.
"""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote

from kfp_tfjob.common.errors import Problem, StepError, ended
from kfp_tfjob.options.key_path import split_keys
from kfp_tfjob.options.parameters import PARAMETERS


def with_hints(error: StepError) -> str:
    """Return an error's message, in which a parameter's fix ends with the option to type."""
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
    """Return the option and value that fix a problem; empty if no option does."""
    path = problem.path
    value = problem.suggestion or _placeholder(str(problem.expected or ""))
    if problem.is_misnamed:
        if not problem.suggestion:
            return ""  # the key must be removed
        path, value = path.removesuffix(str(problem.received)) + problem.suggestion, "VALUE"
    name, *parts = path.split(".")
    if name not in PARAMETERS:
        return ""
    keys, remaining = split_keys(PARAMETERS[name].group, parts)
    if remaining and remaining[0].isdigit():  # an item of a list cannot be set alone
        remaining, value = [], "[VALUE, ...]"
    if not parts and (short := PARAMETERS[name].option):
        return f"{short[0]} {quote(value)}"
    return f"--set {quote('.'.join([name, *keys, *remaining]) + f'={value}')}"


def _placeholder(expected: str) -> str:
    """Return an example of a value in JSON, with VALUE for the parts that a user chooses.

    Args:
        expected: The expected part of a problem, as `options.wording` writes it.
    """
    if expected == "an empty string":
        return ""
    if expected.startswith("a list "):
        return "[VALUE, ...]"
    if expected.startswith("an object of values"):
        return '{"NAME": VALUE, ...}'
    if match := re.match(r"an object with the keys (\w+)", expected):
        return f'{{"{match[1]}": VALUE, ...}}'
    return "VALUE"
