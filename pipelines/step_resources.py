"""The settings of `kfp-tfjob compile --step-resources`: CPU and memory of the steps' own pods.

They are compiled in, because Kubeflow Pipelines starts a step's pod before any of its code runs.
Called by the pipelines, `compilation.py` and `doctor.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping

from kfp_tfjob.common.errors import ConfigurationError, Problem

VARIABLE = "KFP_TFJOB_STEP_RESOURCES"
# Set by `compile --plain-steps`: only these settings decide about the pods of steps.
PLAIN_VARIABLE = "KFP_TFJOB_PLAIN_STEPS"
PLAIN = bool(os.environ.get(PLAIN_VARIABLE))
ALL = "all"
# Each step's resources: `cpu` is a request, `memory` is request and limit. A limit of the CPU would
# merely slow a step down, so there is no limit by default.
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
    """Return the resources of each step: the defaults, changed by settings.

    Args:
        settings: `STEP.KEY=VALUE`; the step `all` stands for every step.

    Raises:
        ConfigurationError: One problem for each setting that does not have this form.
    """
    resources = {step: dict(values) for step, values in DEFAULTS.items()}
    problems = []
    for setting in settings:
        path, _, value = (part.strip() for part in setting.partition("="))
        step, _, key = path.replace("-", "_").partition(".")
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
        for affected in resources if step == ALL else [step]:
            resources[affected][key] = value
    ConfigurationError.raise_if(problems)
    return resources


def resources_of(step: str) -> Mapping[str, str]:
    """Return a step's resources in this compilation; a user's own component gets finish's."""
    compiled_in = json.loads(os.environ.get(VARIABLE) or "{}") or DEFAULTS
    return compiled_in.get(step.replace("-", "_"), DEFAULTS["finish"])
