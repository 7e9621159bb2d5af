"""Returns the defaults of a run's parameters, and renders the parameters as a table.

Called by preflight's engine and by the commands in pipelines/.
"""

from __future__ import annotations

import json
from typing import Any

from kfp_tfjob.common.escaping import code
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.container_images import TRAIN
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parameters import PARAMETERS, RunParameters, completed


def defaults() -> RunParameters:
    """Return the defaults of all run parameters; a required one is empty."""
    parameter_defaults = {
        name: "" if parameter.is_required else parameter.default
        for name, parameter in PARAMETERS.items()
    }
    return completed(parameter_defaults, {"train_image": TRAIN})


def table(values: RunParameters, spec: JobSpec) -> str:
    """Return the job's size, and every parameter's resolved value and meaning, as Markdown.

    Each value is a paragraph: the panel of Kubeflow Pipelines is too narrow for three columns.
    """
    replicas, gpus = spec.replicas, spec.total_gpus
    resolved = {**values, "train_batch_size": spec.batch_size}
    return "\n\n".join(
        [
            "# Parameters of this run",
            f"{counted(replicas, 'replica')} with {counted(gpus, 'GPU') if gpus else 'no GPUs'} in"
            f" total; {spec.batch_size} rows per step.",
            *(
                f"**{code(name)}:** {code(_as_text(masked(resolved[name])))}  \n{parameter.meaning}"
                for name, parameter in PARAMETERS.items()
            ),
            "",
        ]
    )


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
