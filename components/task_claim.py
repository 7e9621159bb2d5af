"""Reserves the folder of a run, or of a task_key in it, for one task of a step.

Two launch_tfjob tasks without a task_key would share attempts, code and output. The second task
would adopt the first one's job, train its code, or return its model, and succeed. So a task records
itself before it writes anything, and another task is rejected. A retry is the same task, so it may
continue. Called by preflight's engine and by launch_tfjob.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.cluster.own_task import POD_NAME, own_task
from kfp_tfjob.common.errors import ConfigurationError, ObjectExistsError, Problem
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.storage import documents

from .step import Step

_SECONDS = 60.0  # enough for a short restart of the Kubernetes API server


@dataclass(frozen=True)
class TaskClaim:
    """The record of the task that uses a folder.

    Attributes:
        workflow: The run's Workflow. A continued run has another one, whose task may have another
            name.
        task: The task's path in the Workflow, joined with dots.
    """

    workflow: str
    task: str


def claim_task(step: Step, seconds: float = _SECONDS) -> None:
    """Reserve the folder of `step` for this task.

    Does nothing in a local run, or if the pod belongs to no task of Kubeflow Pipelines.

    Args:
        step: The step.
        seconds: How long calls to the cluster are retried.

    Raises:
        ConfigurationError: Another task of the same run uses it.
    """
    pod_name = os.environ.get(POD_NAME)
    if is_local() or not pod_name:
        return
    from kfp_tfjob.checks.subject import open_cluster  # loads the Kubernetes client

    path = own_task(open_cluster(seconds, TFJOB), pod_name)
    if not path:
        return
    claim = TaskClaim(path[0], ".".join(path[1:]))
    address = step.run.task_claim(step.name)
    try:
        step.store.create(address, documents.to_bytes(claim), "application/json")
    except ObjectExistsError:
        earlier = documents.read(TaskClaim, step.store.read(address))
        if earlier.workflow == claim.workflow and earlier.task != claim.task:
            raise ConfigurationError(_same_task_key(step, earlier, claim)) from None


def _same_task_key(step: Step, earlier: TaskClaim, claim: TaskClaim) -> Problem:
    return Problem(
        f"another {step.name} task of this run has the same task_key",
        received=f"{step.task_key!r} for {earlier.task} and for {claim.task}",
        expected=f"a different task_key for each {step.name} task of a pipeline",
        fix=f"set task_key of this {step.name} task and of the tasks that use its output, compile"
        " the pipeline again and start a new run",
        path="task_key",
    )
