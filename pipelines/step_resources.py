"""The settings of `kfp-tfjob compile --step-resources`: CPU and memory of the steps' own pods.

They are compiled in, because Kubeflow Pipelines starts a step's pod before any of its code runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from kfp_tfjob.storage.errors import ConfigurationError, Problem

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
        "publish": "4Gi",  # it evaluates a model again if another run was promoted meanwhile
        "finish": "1Gi",
    }.items()
}
_CPU = re.compile(r"(?=.*[1-9])(\d+\.)?\d+m?")
_FORMS = {
    "cpu": _CPU,
    "cpu_limit": _CPU,
    "memory": re.compile(r"(?=.*[1-9])(\d+\.)?\d+[KMGTPE]i?"),
}


def parse(settings: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return every step's resources, by settings `STEP.KEY=VALUE`; `all` is every step.

    Raises:
        ConfigurationError: Settings that do not have this form; all of them.
    """
    found = {step: dict(values) for step, values in DEFAULTS.items()}
    problems = []
    for setting in settings:
        place, _, value = (part.strip() for part in setting.partition("="))
        step, _, key = place.replace("-", "_").partition(".")
        if step not in (*DEFAULTS, ALL) or key not in _FORMS or not _FORMS[key].fullmatch(value):
            problems.append(
                Problem(
                    "--step-resources sets no resource of a step",
                    received=setting,
                    expected=f"STEP.KEY=VALUE; STEP is one of {', '.join([*DEFAULTS, ALL])}; KEY is"
                    " cpu or cpu_limit with cores such as 2 or 500m, or memory such as 8Gi",
                    fix="for example --step-resources prepare_data.memory=8Gi",
                )
            )
            continue
        for one in found if step == ALL else [step]:
            found[one][key] = value
    ConfigurationError.raise_if(problems)
    return found


def resources_of(step: str) -> Mapping[str, str]:
    """Return a step's resources for this compilation; one of your own gets what most get."""
    compiled_in = json.loads(os.environ.get(VARIABLE) or "{}") or DEFAULTS
    return compiled_in.get(step.replace("-", "_"), DEFAULTS["finish"])
