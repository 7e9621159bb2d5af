"""Checks a run's parameters, returns their defaults, and renders them as a table.

The checks need no network and no cluster, so `kfp-tfjob run`, `submit` and `render` use them on the
user's machine before anything starts. Preflight repeats them in the cluster, because a run can also
be started from the UI. Called by preflight's engine and by the commands in pipelines/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import address_fields
from kfp_tfjob.options.images import TRAIN
from kfp_tfjob.options.no_data import has_data, run_problems
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parse import parse, unknown_key
from kfp_tfjob.options.pipeline import PARAMETERS, RunParameters, completed
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.escaping import code
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.names import check_model_name
from kfp_tfjob.storage.store import check_endpoint
from kfp_tfjob.user_code.model_code import ModelCode


def defaults() -> RunParameters:
    """Return the defaults of all run parameters; a required one is empty."""
    parameter_defaults = {
        name: "" if parameter.is_required else parameter.default
        for name, parameter in PARAMETERS.items()
    }
    return completed(parameter_defaults, {"train_image": TRAIN})


def check(values: RunParameters) -> None:
    """Check all run parameters without access to anything outside this process.

    Raises:
        ConfigurationError: All problems, in one error.
    """
    problems = [unknown_key("", key, PARAMETERS) for key in values if key not in PARAMETERS]
    problems += [
        Problem(
            f"{name} is missing",
            received="nothing",
            expected=parameter.words,
            fix=f"set {name}",
            path=name,
            name="missing-parameter",
        )
        for name, parameter in PARAMETERS.items()
        if parameter.is_required and not str(values.get(name, "")).strip()
    ]
    problems += run_problems(values)
    if values.get("output_uri"):
        problems += _problems(partial(_check_output, str(values["output_uri"])))
    problems += address_fields.check(
        str(values.get("data_uri", "")), "data_uri", address_fields.IN_DATA
    )
    if values.get("model_name"):
        problems += check_model_name(str(values["model_name"]))
    problems += _problems(lambda: check_endpoint(str(values.get("storage_endpoint", ""))))
    for name in ("data_options", "gate"):  # the other groups belong to the job
        group = PARAMETERS[name].group
        assert group
        problems += _problems(partial(parse, group, name, values.get(name, {})))
    problems += _problems(lambda: ModelCode.of_run(values))
    problems += _problems(lambda: job_spec(values))
    ConfigurationError.raise_if(problems)


def _check_output(output_uri: str) -> None:
    """Check the address and its fields; commands on the user's machine replace `{user}` before."""
    layout = Layout.parse(output_uri)
    ConfigurationError.raise_if(
        address_fields.check(output_uri, "output_uri", address_fields.IN_FOLDER)
    )
    if address_fields.has_user(layout.template):
        raise ConfigurationError(
            Problem(
                "output_uri contains {user}, which the back end cannot fill in",
                received=repr(output_uri),
                expected="a name instead of {user}; kfp-tfjob run, submit and schedule fill it in",
                fix="write the name into output_uri, or start the run with one of these commands",
                path="output_uri",
            )
        )


def job_spec(values: RunParameters, trained: Mapping[str, Any] | None = None) -> JobSpec:
    """Return the typed form of the parameters that the training job depends on.

    A parameter that is checked separately, or that only a later step can resolve, gets a valid
    placeholder.

    Args:
        values: The run parameters.
        trained: The inputs of an attempt that the run continues.

    Raises:
        ConfigurationError: All problems of these parameters, in one error.
    """
    prefixes = ("storage_", "train_", "pod", "model_hyperparameters")
    job_parameters = {
        name: values[name] for name in values if name in PARAMETERS and name.startswith(prefixes)
    }
    return JobSpec.parse(
        trained=trained or {},
        output_uri="s3://bucket",
        model_name="model",
        model_entry="module:function",
        **job_parameters,
    )


def evaluates(values: RunParameters, spec: JobSpec) -> bool:
    """Return whether the run's model is evaluated, which needs test rows and so a dataset."""
    return spec.options.evaluate and has_data(values)


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


def _problems(check_part: Callable[[], object]) -> list[Problem | str]:
    """Return the problems that a check raises, so that one error can list all of them."""
    try:
        check_part()
    except ConfigurationError as error:
        return list(error.problems)
    return []
