"""The run parameters: what each means, and everything that is wrong with a set of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.components.launch_tfjob.spec import JobSpec
from kfp_tfjob.jobs.secret_values import masked
from kfp_tfjob.options import parse as parameters
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.parse import unknown_key
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.model_names import check_model_name
from kfp_tfjob.storage.store import check_endpoint
from kfp_tfjob.storage.text import code
from kfp_tfjob.storage.words import counted
from kfp_tfjob.trainer.model_code import ModelCode

# The one list of all run parameters: the form, the README and the command line follow it.
MEANING: dict[str, str] = {
    "data_uri": "CSV or Parquet with a header: a file or a folder, `s3://...`, or a path in a"
    " local run",
    "data_label": "the column to predict",
    "data_options": "dict: `task`, `columns`, `drop`, `split`, `on_bad_row`, ...",
    "model_name": "under which the model is published; champion and challenger share it",
    "model_code": "`module:function` of the image, or a `.py` file, folder or zip with `:function`",
    "model_hyperparameters": "dict, the keyword arguments of that function",
    "output_uri": "`s3://bucket/prefix` for everything the run leaves",
    "storage_endpoint": "URL of the store; empty for AWS or what the Secret says",
    "storage_region": "region of the store; empty for what the Secret or the environment says",
    "storage_secret": "Kubernetes Secret with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, ...",
    "train_workers": "replicas beside the one chief",
    "train_gpus": "GPUs of each replica",
    "train_epochs": "passes over the training rows",
    "train_batch_size": "rows of one step over all GPUs of all replicas",
    "train_image": "image of the container `tensorflow`",
    "train_options": "dict: `seed`, `class_weight`, `early_stopping`, `reduce_lr_on_plateau`,"
    " `command`, ...",
    "gate": "dict: when a model is good enough to be published; an empty one never publishes",
    "pod": "dict with `all`, `chief`, `worker`, `ps`, `evaluator`: `cpu`, `memory`, `tolerations`,"
    " `env`, ...",
}
REQUIRED = ("data_uri", "data_label", "model_name", "output_uri")
_DICTS = {"data_options": DataOptions, "gate": GateOptions}


def check(values: Mapping[str, Any]) -> None:
    """Check a whole set of run parameters without asking anything outside this process.

    Args:
        values: Every parameter of MEANING by name, as KFP delivers it.

    Raises:
        ConfigurationError: Everything that is wrong, in one error.
    """
    problems = [unknown_key("", key, MEANING) for key in values if key not in MEANING]
    problems += [
        Problem(
            f"{name} is missing",
            received="nothing",
            expected=MEANING[name].replace("`", ""),
            fix=f"give {name}",
            path=name,
        )
        for name in REQUIRED
        if not str(values.get(name, "")).strip()
    ]
    if values.get("output_uri"):
        problems += _problems(lambda: Layout.parse(str(values["output_uri"])))
    if values.get("model_name"):
        problems += check_model_name(str(values["model_name"]))
    problems += _problems(lambda: check_endpoint(str(values.get("storage_endpoint", ""))))
    for name, group in _DICTS.items():
        problems += _problems(lambda n=name, g=group: parameters.parse(g, n, values.get(n, {})))
    problems += _problems(lambda: ModelCode.parse(values["model_code"]))
    problems += _problems(lambda: job_spec(values))
    ConfigurationError.raise_if(problems)


def job_spec(values: Mapping[str, Any]) -> JobSpec:
    """Return the typed form of the train_ and pod groups.

    What is checked by itself, and what only a later step knows, is given a valid stand-in.

    Raises:
        ConfigurationError: Everything that is wrong with them.
    """
    groups = ("storage_", "train_", "pod", "model_hyperparameters")
    given = {name: values[name] for name in values if name in MEANING and name.startswith(groups)}
    return JobSpec.parse(
        output_uri="s3://bucket", model_name="model", model_entry="module:function", **given
    )


def table(values: Mapping[str, Any], spec: JobSpec) -> str:
    """Return what the job takes, and every resolved value with its meaning, as Markdown.

    A paragraph each: the panel of Kubeflow Pipelines has no room for a table of three columns.
    """
    replicas, gpus = spec.replicas, spec.total_gpus
    return "\n\n".join(
        [
            "# Parameters of this run",
            f"{counted(replicas, 'replica')} with {counted(gpus, 'GPU') if gpus else 'no GPUs'}"
            f" in all; {spec.batch_size} rows a step.",
            *(
                f"**{code(name)}:** {code(_written(masked(values[name])))}  \n{meaning}"
                for name, meaning in MEANING.items()
            ),
            "",
        ]
    )


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)


def _problems(call: Any) -> list[Problem | str]:
    try:
        call()
    except ConfigurationError as error:
        return list(error.problems)
    return []
