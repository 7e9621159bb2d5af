"""The option of the command line that fixes a problem with a run parameter."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile

from kfp_tfjob.storage.errors import Problem, StepError, ended

_OPTIONS = {
    "data_uri": "--data",
    "data_label": "--label",
    "output_uri": "--output",
    "storage_endpoint": "--endpoint",
    "model_name": "--name",
    "model_code": "--model",
    "train_workers": "--workers",
}


def with_hints(error: StepError, parameters: Collection[str]) -> str:
    """Return the message of an error; each problem with a parameter ends with what to type.

    Args:
        error: What is wrong.
        parameters: The names of the run parameters.
    """
    problems = (
        replace(problem, fix=f"{ended(problem.fix)} Type {option}".strip())
        if isinstance(problem, Problem) and (option := _option(problem, parameters))
        else problem
        for problem in error.problems
    )
    return str(StepError(*problems, notes=error.notes))


def _option(problem: Problem, parameters: Collection[str]) -> str:
    *above, last = problem.path.split(".")
    value = problem.suggestion or "VALUE"
    if problem.is_misnamed:
        if not problem.suggestion:
            return ""  # the key has to go
        last, value = problem.suggestion, "VALUE"
    # An item of a list cannot be set alone.
    name = ".".join(takewhile(lambda key: not key.isdigit(), [*above, last]))
    if name.partition(".")[0] not in parameters:
        return ""
    return f"{_OPTIONS[name]} {value}" if name in _OPTIONS else f"--set {name}={value}"
