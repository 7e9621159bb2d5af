"""Runs the step: trains with the run parameters and writes the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_tfjob.cluster.choice import open_backend
from kfp_tfjob.cluster.log_writer import RunLogs
from kfp_tfjob.components.launch_tfjob import launcher
from kfp_tfjob.components.launch_tfjob.launcher import Launched
from kfp_tfjob.components.launch_tfjob.report import curves_html, job_html
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import tensorboard_command
from kfp_tfjob.jobs.masking import hide
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import images
from kfp_tfjob.options.secret_values import secrets_in


def run(step: Step, parameters: Mapping[str, Any], curves: str, job: str) -> Launched:
    """Train with the run parameters and write the reports.

    Args:
        step: The run and its store.
        parameters: The arguments of JobSpec.parse, as KFP delivered them; model_code without those
            that preflight returns.
        curves: Path of the HTML page with the training curves.
        job: Path of the HTML page with the TFJob and the TensorBoard command.

    Returns:
        The completed training; its metrics are finite numbers.

    Raises:
        ConfigurationError: Parameters are wrong, or the back end does not exist.
        JobFailedError: The training failed.
    """
    hide(secrets_in(parameters["model_hyperparameters"]))
    hide(secrets_in(parameters["pod"]))
    given = {**parameters, "train_image": parameters["train_image"] or images.TRAIN}
    if not given["model_entry"]:  # which preflight returns
        from kfp_tfjob.components.launch_tfjob.alone import prepared  # most launches need no checks

        given = prepared(step, given)
    given.pop("model_code", None)
    spec = JobSpec.parse(**given)
    limits = (spec.options.api_timeout_seconds, spec.options.operator_timeout_seconds)
    # The local back end ends its jobs when it is closed, and their last lines are stored after it.
    with RunLogs(step.store, step.run) as logs, open_backend(*limits, spec.kind) as backend:
        launched = launcher.run(step, spec, backend, logs)
    title = f"Training of {spec.model_name or step.task_key or step.run_id}"
    Path(curves).write_text(curves_html(launched.progress, title))
    Path(job).write_text(job_html(launched.manifest, tensorboard_command(step)))
    return launched
