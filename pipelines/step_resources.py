"""The settings of `kfp-tfjob compile --step-resources`: CPU and memory of the steps' own pods.

They are compiled in, because Kubeflow Pipelines starts a step's pod before any of its code runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import nearest

VARIABLE = "KFP_TFJOB_STEP_RESOURCES"
# Set by `compile --plain-steps`: nothing but these settings decides about the pods of steps.
PLAIN_VARIABLE = "KFP_TFJOB_PLAIN_STEPS"
PLAIN = bool(os.environ.get(PLAIN_VARIABLE))
ALL = "all"
# What each step gets: `cpu` is a request, `memory` request and limit. A limit of the CPU would
# only slow a step down, so there is none unless it is set.
DEFAULTS: dict[str, dict[str, str]] = {
    step: {"cpu": "250m", "memory": memory}
    for step, memory in {
        "preflight": "1Gi",
        "prepare_data": "2Gi",
        "launch_tfjob": "1Gi",
        "sync_output": "1Gi",
        "evaluate": "4Gi",
        "publish": "4Gi",  # it judges a model again if another run was promoted meanwhile
        "finish": "1Gi",
    }.items()
}
_NUMBER = r"(?:\d+\.)?\d+"
_CPU = re.compile(rf"{_NUMBER}m?")
_MEMORY = re.compile(rf"{_NUMBER}(?:[KMGTPE]i?)")
_FORMS = {
    "cpu": (_CPU, "a request of cores, for instance 2, 0.5 or 500m"),
    "cpu_limit": (_CPU, "a limit of cores, for instance 2, 0.5 or 500m"),
    "memory": (_MEMORY, "request and limit, for instance 8Gi or 512Mi"),
}


def parse(settings: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the resources of every step, by settings `STEP.KEY=VALUE`; `all` is every step.

    Raises:
        ConfigurationError: Settings that do not have this form; all of them.
    """
    found = {step: dict(values) for step, values in DEFAULTS.items()}
    problems = []
    for setting in settings:
        place, _, value = (part.strip() for part in setting.partition("="))
        step, _, key = place.partition(".")
        step = step.replace("-", "_")
        if problem := _problem(setting, step, key, value):
            problems.append(problem)
            continue
        for one in found if step == ALL else [step]:
            found[one][key] = value
    ConfigurationError.raise_if(problems)
    return found


def _problem(setting: str, step: str, key: str, value: str) -> Problem | None:
    steps = [*DEFAULTS, ALL]
    if step not in steps:
        return Problem(
            "--step-resources names no step",
            received=setting,
            expected=f"STEP.KEY=VALUE, where STEP is one of {', '.join(steps)}",
            fix=f"--step-resources {nearest(step, steps)}.{key or 'memory'}={value or '2Gi'}",
        )
    if key not in _FORMS:
        return Problem(
            "--step-resources names no resource",
            received=setting,
            expected=f"STEP.KEY=VALUE, where KEY is one of {', '.join(_FORMS)}",
            fix=f"--step-resources {step}.{nearest(key, [*_FORMS])}={value or '2Gi'}",
        )
    form, words = _FORMS[key]
    number = re.match(_NUMBER, value)
    if not form.fullmatch(value) or not number or not float(number[0]):
        return Problem(
            f"--step-resources has no quantity for {step}.{key}",
            received=setting,
            expected=words,
            fix=f"--step-resources {step}.{key}={'8Gi' if key == 'memory' else '2'}",
        )
    return None


def resources_of(step: str) -> Mapping[str, str]:
    """Return a step's resources for this compilation; one of your own gets what most get."""
    compiled_in = json.loads(os.environ.get(VARIABLE) or "{}") or DEFAULTS
    return compiled_in.get(step.replace("-", "_"), DEFAULTS["finish"])
