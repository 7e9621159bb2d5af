"""The KFP interface of preflight.

Called by the pipeline in `tfjob_training.py`.
"""

# Kubeflow Pipelines reads the outputs from a call in an annotation.
# pyright: reportInvalidTypeForm=false

from typing import NamedTuple

from kfp import dsl

from kfp_tfjob.options.container_images import TOOLS

from ..parameter_docs import with_parameter_docs


@dsl.component(base_image=TOOLS, install_kfp_package=False)
@with_parameter_docs
def preflight(
    *,
    run_id: str,
    scheduled_time: str = "",
    data_uri: str = "",
    data_label: str = "",
    data_options: dict = {},
    model_name: str,
    model_code: str = "kfp_tfjob.trainer.models:mlp",
    model_hyperparameters: dict = {},
    output_uri: str,
    storage_endpoint: str = "",
    storage_region: str = "",
    storage_secret: str = "objstore-cred",
    train_workers: int = 1,
    train_gpus: int = 0,
    train_epochs: int = 20,
    train_batch_size: int = 0,
    train_image: str = "",
    train_options: dict = {},
    gate: dict = {
        "primary_metric": "auto",
        "mode": "superior",
        "confidence": 0.95,
        "first_model": "beat_baseline",
    },
    pod: dict = {},
    task_key: str = "",
    step_resources: dict = {},
    parameters: dsl.Output[dsl.Markdown],
) -> NamedTuple(
    "Outputs",
    [
        ("data_uri", str),
        ("source_digest", str),
        ("model_entry", str),
        ("code_uri", str),
        ("changed", bool),
        ("evaluate", bool),
        ("inputs_digest", str),
        ("job_kind", str),
        ("prepare_data_cpu", str),
        ("prepare_data_memory", str),
        ("prepare_data_node_selector", dict),
        ("prepare_data_tolerations", list),
        ("evaluate_cpu", str),
        ("evaluate_memory", str),
        ("evaluate_node_selector", dict),
        ("evaluate_tolerations", list),
        ("evaluate_gpus", str),
        ("evaluate_gpu_resource", str),
        ("evaluate_image", str),
        ("publish_cpu", str),
        ("publish_memory", str),
    ],
):
    """Check everything a run needs before it costs anything.

    Args:
        run_id: The run's id.
        scheduled_time: The schedule's tick, in UTC; without a schedule, when the run was created.
        task_key: The key of the launch_tfjob that takes the outputs.
        step_resources: The compiled cpu, memory and cpu_limit of each step; empty if the pipeline
            does not pass the outputs for the steps' pods to its tasks.
        parameters: Every parameter with its value and meaning.

    Returns:
        data_uri: The data of this run, with the fields of the tick filled in.
        source_digest: Identifies the source's content at the start.
        model_entry: `module:function` as the trainer imports it.
        code_uri: The run's copy of the user's code; empty if the code is in the image.
        changed: Whether the run trains; if not, the later steps are skipped.
        evaluate: Whether the model is evaluated; if not, the run ends after sync_output.
        inputs_digest: Identifies everything that decides what is trained, for `when_unchanged`.
        job_kind: The kind of job that `train_options.job: auto` means here, for launch_tfjob.
        prepare_data_cpu: From pod.prepare or step_resources, for set_cpu_request of prepare_data.
        prepare_data_memory: For set_memory_request and set_memory_limit of prepare_data.
        prepare_data_node_selector: For kubernetes.add_node_selector_json of prepare_data.
        prepare_data_tolerations: For kubernetes.add_toleration_json of prepare_data.
        evaluate_cpu: From pod.evaluate or step_resources, for set_cpu_request of evaluate.
        evaluate_memory: For set_memory_request and set_memory_limit of evaluate.
        evaluate_node_selector: For kubernetes.add_node_selector_json of evaluate and publish.
        evaluate_tolerations: For kubernetes.add_toleration_json of evaluate and publish.
        evaluate_gpus: For set_accelerator_limit of evaluate and publish.
        evaluate_gpu_resource: For set_accelerator_type of evaluate and publish; empty without GPUs.
        evaluate_image: For set_container_image of evaluate and publish.
        publish_cpu: From pod.evaluate or step_resources, for set_cpu_request of publish.
        publish_memory: For set_memory_request and set_memory_limit of publish.
    """
    values = dict(locals())
    for name in ("run_id", "scheduled_time", "task_key", "step_resources", "parameters"):
        del values[name]
    from kfp_tfjob.components.notify_end import step_ended
    from kfp_tfjob.components.preflight.engine import run
    from kfp_tfjob.components.step import reported

    with reported("preflight") as outcome:
        checked = run(outcome, run_id, values, scheduled_time, task_key, step_resources)
        with open(parameters.path, "w") as file:
            file.write(checked.table)
        if not checked.changed:
            step_ended(outcome.step, model_name)
    return (
        checked.data_uri,
        checked.source_digest,
        checked.model_entry,
        checked.code_uri,
        checked.changed,
        checked.evaluate,
        checked.inputs_digest,
        checked.job_kind,
        *checked.step_pods,
    )
