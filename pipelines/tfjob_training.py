"""Defines the pipeline: prepare, train, verify, evaluate, publish.

Compiling it decides no names, ids, times or namespaces, because they belong to a run.
options/pipeline.py declares the run parameters.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kfp import dsl, kubernetes

from kfp_tfjob.components.evaluate.component import evaluate
from kfp_tfjob.components.finish.component import finish
from kfp_tfjob.components.images import (
    RUN_AS_USER,
    TOOLS,
    TOOLS_VARIABLE,
    TRAIN,
    TRAIN_VARIABLE,
    TRAINER,
    TRAINER_VARIABLE,
)
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.preflight.component import preflight
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.publish.component import publish
from kfp_tfjob.components.sync_output.component import sync_output
from kfp_tfjob.options.fields import TICK
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.storage.credentials import MOUNT

DESCRIPTION = """\
Train a Keras model as a TFJob on many pods with all-reduce, mirror the output of the chief to S3,
verify it, compare the model with the current champion, and publish it only if it is better. The
first step, preflight, shows every parameter with its meaning and refuses wrong ones before anything
else runs. Credentials come from the Secret that storage_secret names, never from a parameter."""


def _task(task: dsl.PipelineTask, storage_secret: str, memory: str = "1Gi") -> dsl.PipelineTask:
    """Give a task what every task needs: the Secret, a user, its own resources, and no cache.

    A cache hit could return an address that was deleted since; the steps find reusable data by its
    digest instead. The Secret is optional, because a pod with a missing Secret hangs without a
    message, while preflight can report it. Pods with a non-root user are admitted under Pod
    Security `restricted`.
    """
    kubernetes.use_secret_as_volume(
        task, secret_name=storage_secret, mount_path=str(MOUNT), optional=True
    )
    if RUN_AS_USER != "none":
        kubernetes.set_security_context(task, run_as_user=int(RUN_AS_USER), run_as_non_root=True)
    # A job uses the images that `compile` was given, too.
    task.set_env_variable(TOOLS_VARIABLE, TOOLS).set_env_variable(TRAINER_VARIABLE, TRAINER)
    task.set_env_variable(TRAIN_VARIABLE, TRAIN)
    task.set_cpu_request("250m").set_memory_request(memory).set_memory_limit(memory)
    return task.set_caching_options(False)


# In a signature, parameters without a default come first.
_ORDER = sorted(PARAMETERS, key=lambda name: not PARAMETERS[name].is_required)


def _with_form(pipeline: Callable[..., None]) -> Callable[..., None]:
    """Give a pipeline the run parameters as the signature and the docstring that KFP reads."""
    known = defaults()
    pipeline.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if PARAMETERS[name].is_required else known[name],
                annotation=PARAMETERS[name].type,
            )
            for name in _ORDER
        ]
    )
    arguments = [f"    {name}: {PARAMETERS[name].words}" for name in _ORDER]
    pipeline.__doc__ = "\n".join([pipeline.__doc__ or "", "", "Args:", *arguments])
    return pipeline


def _inputs(step: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run parameters that a step takes, and the run id and the tick if it takes them."""
    return {name: given[name] for name in step.component_spec.inputs if name in given}


@dsl.pipeline(name="tfjob-training", description=DESCRIPTION)
@_with_form
def tfjob_training(*values):
    """Train, verify, evaluate and publish a model; preflight's report explains every parameter."""
    run = dict(zip(_ORDER, values, strict=True)) | {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
    run |= {TICK: dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER}
    storage_secret = run["storage_secret"]

    finished = _task(finish(**_inputs(finish, run)), storage_secret)
    with dsl.ExitHandler(finished, name="train-and-judge"):
        checked = _task(preflight(**_inputs(preflight, run)), storage_secret)
        prepared = _task(
            prepare_data(
                source_digest=checked.outputs["source_digest"],
                **_inputs(prepare_data, run | {"data_uri": checked.outputs["data_uri"]}),
            ),
            storage_secret,
            memory="2Gi",
        )
        launched = _task(
            launch_tfjob(
                dataset_uri=prepared.outputs["dataset_uri"],
                model_entry=checked.outputs["model_entry"],
                code_uri=checked.outputs["code_uri"],
                **_inputs(launch_tfjob, run),
            ),
            storage_secret,
        )
        # The launcher's own pod may be drained while the job runs; the next one takes the job over.
        launched.set_retry(num_retries=2)
        synced = _task(sync_output(**_inputs(sync_output, run)).after(launched), storage_secret)
        judged = _task(
            evaluate(
                dataset_uri=prepared.outputs["dataset_uri"],
                model_uri=synced.outputs["model_uri"],
                **_inputs(evaluate, run),
            ),
            storage_secret,
            memory="4Gi",
        )
        with dsl.If(judged.outputs["Output"] == True, name="blessed"):  # noqa: E712 - KFP's operator
            _task(
                publish(
                    model_uri=synced.outputs["model_uri"],
                    dataset_uri=prepared.outputs["dataset_uri"],
                    **_inputs(publish, run),
                ),
                storage_secret,
            )
