"""Defines the pipeline: prepare, train, verify, evaluate, publish.

Compiling it decides no names, ids, times or namespaces, because they belong to a run.
kfp_tfjob/options/parameters.py declares the run parameters. Called by `compilation.py`, and by
`pipeline_process.py` for a local run.
"""

from collections.abc import Mapping
from typing import Any

from kfp import dsl

from kfp_tfjob.checks.step_pods import KEYS
from kfp_tfjob.components.evaluate.component import evaluate
from kfp_tfjob.components.finish.component import finish
from kfp_tfjob.components.preflight.component import preflight
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.publish.component import publish
from kfp_tfjob.components.sync_output.component import sync_output
from kfp_tfjob.options.address_fields import TICK
from kfp_tfjob.options.parameters import PARAMETERS

from .signature import REQUIRED, Field, with_signature
from .step_pod import sized, with_store
from .step_resources import PLAIN, resources_of
from .without_task_config import launch_tfjob

STEPS = (preflight, prepare_data, launch_tfjob, sync_output, evaluate, publish, finish)
# The inputs of steps that belong to a run.
OF_THE_RUN = {
    "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    TICK: dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
}

DESCRIPTION = """\
Train a Keras model as a TFJob on many pods with all-reduce, mirror the chief's output to S3,
verify it, compare the model with the current champion, and publish it only if it is better.
Required: model_name, for example churn; output_uri, for example s3://bucket/models; and data_uri,
for example s3://bucket/customers.csv, with data_label for a table, unless train_options.command is
your own program and needs no data. The first step, preflight, shows every parameter with its
meaning and rejects invalid ones before anything else runs; all options are in docs/parameters.md of
kfp-tfjob. Credentials come from the Secret that storage_secret names,
never from a parameter."""


# In a signature, parameters without a default come first.
_ORDER = sorted(PARAMETERS, key=lambda name: not PARAMETERS[name].is_required)


def _form() -> list[Field]:
    """Return the run parameters as inputs of the pipeline, with compiled-in images as defaults."""
    form_defaults = defaults()
    return [
        Field(
            name,
            PARAMETERS[name].type,
            REQUIRED if PARAMETERS[name].is_required else form_defaults[name],
            PARAMETERS[name].plain_sentence,
        )
        for name in _ORDER
    ]


def _pipeline(*values):
    """Train, verify, evaluate and publish a model; preflight's report explains every parameter."""
    run = dict(zip(_ORDER, values, strict=True)) | OF_THE_RUN
    storage_secret = run["storage_secret"]

    def task(step: Any, **from_tasks: Any) -> dsl.PipelineTask:
        """Return the task of a step, with run parameters and outputs of other tasks as inputs."""
        from_run = {name: run[name] for name in step.component_spec.inputs if name in run}
        return with_store(step(**from_run | from_tasks), storage_secret)

    compiled = {} if PLAIN else {step: dict(resources_of(step)) for step in KEYS}
    with dsl.ExitHandler(task(finish), name="train-and-judge"):
        checked = task(preflight, step_resources=compiled)
        prepared = task(
            prepare_data,
            data_uri=checked.outputs["data_uri"],
            source_digest=checked.outputs["source_digest"],
        )
        sized(prepared, checked)
        launched = task(
            launch_tfjob,
            dataset_uri=prepared.outputs["dataset_uri"],
            model_entry=checked.outputs["model_entry"],
            code_uri=checked.outputs["code_uri"],
            job_kind=checked.outputs["job_kind"],
        )
        synced = task(sync_output, evaluate=checked.outputs["evaluate"]).after(launched)
        judged = task(
            evaluate,
            dataset_uri=prepared.outputs["dataset_uri"],
            model_uri=synced.outputs["model_uri"],
            inputs_digest=checked.outputs["inputs_digest"],
        )
        sized(judged, checked)
        published = task(
            publish,
            model_uri=synced.outputs["model_uri"],
            dataset_uri=prepared.outputs["dataset_uri"],
        )
        sized(published, checked).after(judged)


tfjob_training = dsl.pipeline(name="tfjob-training", description=DESCRIPTION)(
    with_signature(_pipeline, _form())
)

# Outputs that are conditions of later tasks: whether the run trains, evaluates and publishes. Each
# is a task's name and the name of its output.
CHANGED, EVALUATE = ("preflight", "changed"), ("preflight", "evaluate")
BLESSED = ("evaluate", "Output")


def tasks_of(pipeline: Any) -> Mapping[str, Any]:
    """Return the tasks from preflight to publish, by name, in the pipeline's compiled form."""
    dags = (component.dag.tasks for component in pipeline.pipeline_spec.components.values())
    return next(tasks for tasks in dags if "prepare-data" in tasks)


def input_of(output: tuple[str, str]) -> str:
    """Return KFP's name of the input through which a task receives another task's output."""
    return "pipelinechannel--" + "-".join(output)


def only_if(task: Any, output: tuple[str, str] = CHANGED) -> None:
    """Let a task, and all tasks that need its output, run only if another task's output is true.

    Args:
        task: The task, in the compiled form of the pipeline.
        output: The other task and the name of its output, a bool.

    dsl.If would do the same with a DAG around the tasks, but its driver takes ten seconds of every
    run that trains, and tasks in it cannot be `sized`. The driver of a task evaluates a condition
    too, but the SDK does not expose that.
    """
    source = task.inputs.parameters[input_of(output)].task_output_parameter
    source.producer_task, source.output_parameter_key = output
    task.trigger_policy.condition = f"inputs.parameter_values['{input_of(output)}'] == true"


only_if(tasks_of(tfjob_training)["prepare-data"])
only_if(tasks_of(tfjob_training)["evaluate"], EVALUATE)
only_if(tasks_of(tfjob_training)["publish"], BLESSED)
