"""The pipeline: prepare, train, prove, judge, publish.

Nothing here is decided when it is compiled: names, ids, times and namespaces belong to a run.
"""

from kfp import dsl, kubernetes

from kfp_tfjob.components.evaluate.component import evaluate
from kfp_tfjob.components.finish.component import finish
from kfp_tfjob.components.images import (
    RUN_AS_USER,
    TOOLS,
    TOOLS_VARIABLE,
    TRAINER,
    TRAINER_VARIABLE,
)
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.preflight.component import preflight
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.publish.component import publish
from kfp_tfjob.components.sync_output.component import sync_output
from kfp_tfjob.options.gate import DEFAULT_GATE
from kfp_tfjob.storage.credentials import MOUNT

DESCRIPTION = """\
Train a Keras model on many pods with all-reduce as a TFJob, mirror what the chief writes to S3,
prove it, judge it against the current champion and publish it only if it is better. The first
step, preflight, shows every parameter with its meaning and refuses wrong ones before anything
else runs. Credentials come from the Secret named by storage_secret, never from a parameter."""


def _task(task: dsl.PipelineTask, storage_secret: str, memory: str = "1Gi") -> dsl.PipelineTask:
    """Give a task what every task needs: the Secret, a user, its own resources, and no cache.

    A cache hit would hand on an address that may have been deleted since; what may be reused is
    found by its digest instead. The Secret is optional, because a pod with a missing one hangs
    without a word, while preflight can say that it is missing. With a user that is not root the
    pods are admitted under Pod Security `restricted`.
    """
    kubernetes.use_secret_as_volume(
        task, secret_name=storage_secret, mount_path=str(MOUNT), optional=True
    )
    if RUN_AS_USER != "none":
        kubernetes.set_security_context(task, run_as_user=int(RUN_AS_USER), run_as_non_root=True)
    # What `compile` was told of the images is what a job is made of, too.
    task.set_env_variable(TOOLS_VARIABLE, TOOLS).set_env_variable(TRAINER_VARIABLE, TRAINER)
    task.set_cpu_request("250m").set_memory_request(memory).set_memory_limit(memory)
    return task.set_caching_options(False)


@dsl.pipeline(name="tfjob-training", description=DESCRIPTION)
def tfjob_training(
    data_uri: str,
    data_label: str,
    model_name: str,
    output_uri: str,
    data_options: dict = {},  # noqa: B006 - KFP reads defaults, nothing changes them
    model_code: str = "kfp_tfjob.trainer.models:mlp",
    model_hyperparameters: dict = {},  # noqa: B006
    storage_endpoint: str = "",
    storage_region: str = "",
    storage_secret: str = "objstore-cred",
    train_workers: int = 1,
    train_gpus: int = 0,
    train_epochs: int = 20,
    train_batch_size: int = 64,
    train_image: str = TRAINER,
    train_options: dict = {},  # noqa: B006
    gate: dict = DEFAULT_GATE,
    pod: dict = {},  # noqa: B006
):
    """Train, prove, judge and publish one model; preflight's report explains every parameter.

    Args:
        data_uri: CSV or Parquet with a header in S3, a file or a folder.
        data_label: The column to predict.
        model_name: Under which the model is published.
        output_uri: s3://bucket/prefix for everything the run leaves.
        data_options: Task, columns, split, bad rows.
        model_code: module:function of the image, or a .py file, folder or zip with :function.
        model_hyperparameters: The keyword arguments of that function.
        storage_endpoint: URL of the store; empty for AWS or what the Secret says.
        storage_region: Region of the store.
        storage_secret: Kubernetes Secret with the keys of the store.
        train_workers: Replicas beside the one chief.
        train_gpus: GPUs of each replica.
        train_epochs: Passes over the training rows.
        train_batch_size: Rows of one step over all GPUs of all replicas.
        train_image: Image of the replicas.
        train_options: Seed, class weights, early stopping, own command, deadlines.
        gate: When a model is good enough to be published; an empty one never publishes.
        pod: Resources and placement of the replicas.
    """
    storage = {"storage_endpoint": storage_endpoint, "storage_region": storage_region}
    run = {"run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER, "output_uri": output_uri} | storage

    finished = _task(finish(model_name=model_name, **run), storage_secret)
    with dsl.ExitHandler(finished, name="train-and-judge"):
        checked = _task(
            preflight(
                data_uri=data_uri,
                data_label=data_label,
                data_options=data_options,
                model_name=model_name,
                model_code=model_code,
                model_hyperparameters=model_hyperparameters,
                storage_secret=storage_secret,
                train_workers=train_workers,
                train_gpus=train_gpus,
                train_epochs=train_epochs,
                train_batch_size=train_batch_size,
                train_image=train_image,
                train_options=train_options,
                gate=gate,
                pod=pod,
                **run,
            ),
            storage_secret,
        )
        prepared = _task(
            prepare_data(
                data_uri=data_uri,
                data_label=data_label,
                data_options=data_options,
                source_digest=checked.outputs["source_digest"],
                **run,
            ),
            storage_secret,
            memory="2Gi",
        )
        launched = _task(
            launch_tfjob(
                storage_secret=storage_secret,
                dataset_uri=prepared.outputs["dataset_uri"],
                model_name=model_name,
                model_entry=checked.outputs["model_entry"],
                code_uri=checked.outputs["code_uri"],
                model_hyperparameters=model_hyperparameters,
                train_workers=train_workers,
                train_gpus=train_gpus,
                train_epochs=train_epochs,
                train_batch_size=train_batch_size,
                train_image=train_image,
                train_options=train_options,
                pod=pod,
                **run,
            ),
            storage_secret,
        )
        # The launcher's own pod may be drained while the job runs; the next one takes the job over.
        launched.set_retry(num_retries=2)
        synced = _task(sync_output(**run).after(launched), storage_secret)
        judged = _task(
            evaluate(
                dataset_uri=prepared.outputs["dataset_uri"],
                model_name=model_name,
                model_uri=synced.outputs["model_uri"],
                gate=gate,
                **run,
            ),
            storage_secret,
            memory="4Gi",
        )
        with dsl.If(judged.outputs["Output"] == True, name="blessed"):  # noqa: E712 - KFP's operator
            _task(
                publish(
                    model_name=model_name,
                    model_uri=synced.outputs["model_uri"],
                    dataset_uri=prepared.outputs["dataset_uri"],
                    **run,
                ),
                storage_secret,
            )
