"""The KFP interface of launch_tfjob.

Called by users' pipelines; our own take it from `without_task_config.py`.
"""

# Kubeflow Pipelines reads the outputs from a call in an annotation, and None is the default of an
# input that the back end fills in.
# pyright: reportInvalidTypeForm=false, reportArgumentType=false

from typing import NamedTuple

from kfp import dsl

from kfp_tfjob.options import container_images

from ..parameter_docs import with_parameter_docs

# A pipeline's settings of the task are for the replicas. The step's own pod needs the Secret and
# the images, too; with the other settings, it would wait for the replicas' GPUs.
PASSED_ON = [
    dsl.TaskConfigField.RESOURCES,
    dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
    dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
    dsl.TaskConfigField.KUBERNETES_AFFINITY,
    dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
    dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
]


@dsl.component(
    base_image=container_images.TOOLS, install_kfp_package=False, task_config_passthroughs=PASSED_ON
)
@with_parameter_docs
def launch_tfjob(
    *,
    run_id: str,
    output_uri: str,
    task_key: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    storage_secret: str = "objstore-cred",
    dataset_uri: str = "",
    model_name: str = "",
    model_code: str = "kfp_tfjob.trainer.models:mlp",
    model_entry: str = "",
    code_uri: str = "",
    job_kind: str = "",
    model_hyperparameters: dict = {},
    train_workers: int = 1,
    train_gpus: int = 0,
    train_epochs: int = 20,
    train_batch_size: int = 0,
    train_image: str = "",
    train_options: dict = {},
    pod: dict = {},
    task_config: dsl.TaskConfig = None,
    trained_model: dsl.Output[dsl.Model],
    training_curves: dsl.Output[dsl.HTML],
    training_job: dsl.Output[dsl.HTML],
    training_metrics: dsl.Output[dsl.Metrics],
) -> NamedTuple(
    "Outputs", [("job_name", str), ("attempts", int), ("model_uri", str), ("trained_uri", str)]
):
    """Train on many replicas as a TFJob, until the output is verified in S3.

    A run with complete output is not trained again. After a lost replica, a new attempt resumes
    from the newest stored checkpoint.

    Args:
        run_id: The run; its output is stored below output_uri under this name.
        task_key: Separates several launches in one run: at most 20 lowercase letters, digits and -.
        dataset_uri: The prepared dataset; empty if your program reads none.
        model_name: Here it only labels the job and its page.
        model_code: Ignored if model_entry is set.
        model_entry: The function that builds the model, as `module:function`, from preflight; empty
            without preflight.
        code_uri: The copy of the user's code, from preflight; empty without preflight.
        job_kind: The kind of job, from preflight; empty without preflight.
        train_image: If empty, it is the one that was compiled in.
        task_config: What the pipeline sets on this task, for the replicas; from the back end.
        trained_model: What was trained, as a model card; its address, size, digests and metrics are
            its metadata.
        training_curves: The training curves.
        training_job: The command for TensorBoard, and the TFJob as YAML; its name, the attempts and
            the model's address are its metadata.
        training_metrics: The final metrics, and the GPU hours used, pending and lost to restarts.

    Returns:
        job_name: The TFJob that completed the output.
        attempts: How many TFJobs the run needed.
        model_uri: The run's SavedModel, before it is evaluated; empty if there is none.
        trained_uri: The folder with all of the chief's output.
    """
    values = dict(locals())
    pages = ("training_curves", "training_job", "training_metrics", "trained_model")
    for name in ("run_id", "task_key", *pages):
        del values[name]
    if values.get("task_config"):
        values["task_config"] = vars(values["task_config"])
    from kfp_tfjob.components.launch_tfjob import engine
    from kfp_tfjob.components.launch_tfjob.card import render
    from kfp_tfjob.components.step import step

    storage = (storage_endpoint, storage_region)
    with step("launch_tfjob", run_id, output_uri, *storage, task_key) as context:
        launched = engine.run(context, values, training_curves.path, training_job.path)
        for name, value in {**launched.progress.final, **launched.gpu_hours}.items():
            training_metrics.log_metric(name, value)
        training_job.metadata["job_name"] = launched.job_name
        training_job.metadata["attempts"] = launched.attempts
        training_job.metadata["model_uri"] = launched.model_uri
        launched.card.write(trained_model, render(launched.card).encode())
    return (launched.job_name, launched.attempts, launched.model_uri, str(context.run.output))
