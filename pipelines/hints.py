"""What to type so that a problem with a run parameter is gone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from kfp_tfjob.storage.errors import Problem, StepError

_OPTIONS = {
    "data_uri": "--data",
    "data_label": "--label",
    "output_uri": "--output",
    "storage_endpoint": "--endpoint",
    "model_name": "--name",
    "model_code": "--model",
    "train_workers": "--workers",
}
_PATH = re.compile(r"[a-z_]+(?:\.[A-Za-z_][\w-]*)*")
_MEANT = re.compile(r"did you mean '([^']+)'\?")
_VALUE = re.compile(r"\bto ([0-9]+)\b")


def with_hints(error: StepError, parameters: Iterable[str]) -> str:
    """Return the message of an error, in which problems with parameters end with an option.

    Args:
        error: What is wrong.
        parameters: The names of the run parameters.
    """
    known = set(parameters)
    problems = (_with_hint(problem, known) for problem in error.problems)
    return str(StepError(*problems, notes=error.notes))


def _with_hint(problem: Problem | str, known: set[str]) -> Problem | str:
    if not isinstance(problem, Problem) or "--" in problem.fix or problem.fix.startswith("remove"):
        return problem
    path = _PATH.match(problem.what)
    keys = path[0].split(".") if path else []
    if meant := _MEANT.match(problem.fix):
        keys = [*(keys if keys and keys[0] in known else []), meant[1]]
    if not keys or keys[0] not in known:
        return problem
    value = _VALUE.search(problem.fix)
    given = value[1] if value else "VALUE"
    name = ".".join(keys)
    option = f"{_OPTIONS[name]} {given}" if name in _OPTIONS else f"--set {name}={given}"
    return replace(
        problem, fix=f"{problem.fix} Then it is {option}" if meant else f"{problem.fix}: {option}"
    )
