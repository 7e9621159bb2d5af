"""Sets a task's pod up for a step of this project, in its own pipeline and in users' pipelines.

A component cannot declare its Secret, user or resources; a pipeline sets them on the task. Called
by `tfjob_training.py` and `one_step.py`, and by users' pipelines.
"""

import os
from dataclasses import replace
from typing import Any

from kfp import dsl, kubernetes
from kfp.dsl.structures import ResourceSpec

from kfp_tfjob.common.docs_page import SITE_VARIABLE
from kfp_tfjob.options.container_images import (
    RUN_AS_USER,
    TOOLS,
    TOOLS_VARIABLE,
    TRAIN,
    TRAIN_VARIABLE,
    TRAINER,
    TRAINER_VARIABLE,
)
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.storage.credentials import MOUNT

from .step_resources import PLAIN, resources_of

# The launcher's own pod may be drained while the job runs; the next one takes the job over.
_RETRIES = {"launch-tfjob": 2}


def with_store(
    task: dsl.PipelineTask, storage_secret: str = str(PARAMETERS["storage_secret"].default)
) -> dsl.PipelineTask:
    """Give a task the store's Secret, a user, its own resources, and no cache.

    A task that passes its resources on, as the Python component launch_tfjob does, gets no
    resources, because they would become the replicas' resources.

    A cache hit could return an address that was deleted since; the steps find reusable data by its
    digest instead. The Secret is optional, because a pod with a missing Secret hangs without a
    message, while a step can report it. Pods with a non-root user are admitted under Pod Security
    `restricted`.

    Args:
        task: A step of this project, or a component of your own that reads the store.
        storage_secret: The name of the Secret, or the pipeline parameter with its name.

    Returns:
        The same task.
    """
    kubernetes.use_secret_as_volume(
        task, secret_name=storage_secret, mount_path=str(MOUNT), optional=True
    )
    if RUN_AS_USER != "none":
        kubernetes.set_security_context(task, run_as_user=int(RUN_AS_USER), run_as_non_root=True)
    container = task.container_spec
    if container is None:
        raise ValueError("a pipeline that is used as a component has no pod; pass a single step")
    # KFP's setters of these fields read the sources of the whole stack for a possible error. That
    # would be half of the time to import a pipeline, and seconds in a deep stack.
    # The launcher creates jobs with the images that `compile` was given.
    variables = {TOOLS_VARIABLE: TOOLS, TRAINER_VARIABLE: TRAINER, TRAIN_VARIABLE: TRAIN}
    if site := os.environ.get(SITE_VARIABLE):
        variables[SITE_VARIABLE] = site
    container.env = {**(container.env or {}), **variables}
    step = task.component_spec.name
    if not _passes_resources(task):
        resources = resources_of(step)
        container.resources = replace(
            container.resources or ResourceSpec(),
            cpu_request=resources["cpu"],
            memory_request=resources["memory"],
            memory_limit=resources["memory"],
        )
        if limit := resources.get("cpu_limit"):
            container.resources.cpu_limit = limit
    if retries := _RETRIES.get(step):
        task.set_retry(num_retries=retries)
    return task.set_caching_options(False)


def _passes_resources(task: dsl.PipelineTask) -> bool:
    passthroughs = task.component_spec.task_config_passthroughs or ()
    return any(entry.field == dsl.TaskConfigField.RESOURCES for entry in passthroughs)


def sized(task: dsl.PipelineTask, checked: dsl.PipelineTask) -> dsl.PipelineTask:
    """Give the pod of a task the resources, nodes and image in preflight's outputs.

    Args:
        task: The task of prepare_data, evaluate or publish, from `with_store`.
        checked: The task of preflight, with the argument `step_resources`.

    Returns:
        The same task.
    """
    if PLAIN:
        return task
    step, outputs = task.component_spec.name.replace("-", "_"), checked.outputs
    # publish may evaluate the model again, so it runs on the same nodes as evaluate.
    settings = "evaluate" if step == "publish" else step
    container: Any = task.container_spec
    memory = str(outputs[f"{step}_memory"])
    container.resources = replace(
        container.resources,
        cpu_request=str(outputs[f"{step}_cpu"]),
        memory_request=memory,
        memory_limit=memory,
    )
    if settings == "evaluate":
        container.resources.accelerator_type = str(outputs["evaluate_gpu_resource"])
        container.resources.accelerator_count = str(outputs["evaluate_gpus"])
        container.image = str(outputs["evaluate_image"])
    labels: Any = outputs[f"{settings}_node_selector"]
    tolerations: Any = outputs[f"{settings}_tolerations"]
    kubernetes.add_node_selector_json(task, labels)
    kubernetes.add_toleration_json(task, tolerations)
    # KFP derives the order of tasks from inputs, not from placeholders in resources or an image.
    return task.after(checked)
