"""The KFP interface of launch_tfjob."""

from typing import NamedTuple

from kfp import dsl

from kfp_tfjob.components import images


@dsl.component(base_image=images.TOOLS, install_kfp_package=False)
def launch_tfjob(
    run_id: str,
    output_uri: str,
    storage_endpoint: str,
    storage_region: str,
    storage_secret: str,
    dataset_uri: str,
    model_name: str,
    model_entry: str,
    code_uri: str,
    model_hyperparameters: dict,
    train_workers: int,
    train_gpus: int,
    train_epochs: int,
    train_batch_size: int,
    train_image: str,
    train_options: dict,
    pod: dict,
    training_curves: dsl.Output[dsl.HTML],
    training_job: dsl.Output[dsl.HTML],
    training_metrics: dsl.Output[dsl.Metrics],
) -> NamedTuple("Outputs", [("job_name", str), ("attempts", int), ("model_uri", str)]):
    """Trains on many replicas as a TFJob, until the output is proven to be in S3.

    A run with complete output is not trained again. After a lost replica a new attempt resumes
    from the newest stored checkpoint.

    Args:
        run_id: The run; its output is stored below output_uri under this name.
        output_uri: Where all runs are stored, s3://BUCKET/PREFIX.
        storage_endpoint: URL of the store; empty for what the Secret or AWS says.
        storage_region: Region of the store; empty for what the Secret or AWS says.
        storage_secret: Name of the Secret with the keys of the store.
        dataset_uri: The prepared dataset.
        model_name: The model, for the labels of the job.
        model_entry: `module:function` that builds the model.
        code_uri: The copy of the user's code in S3; empty when the image has it.
        model_hyperparameters: The keyword arguments of that function.
        train_workers: Replicas in addition to the chief.
        train_gpus: GPUs of each replica.
        train_epochs: Passes over the training rows.
        train_batch_size: Rows of one step over all GPUs of all replicas.
        train_image: Image of the container `tensorflow`.
        train_options: seed, class_weight, early_stopping, command, deadlines and more.
        pod: Settings of the pods under the keys all, chief, worker, ps, evaluator.
        training_curves: The training curves.
        training_job: The command for TensorBoard, and the TFJob as YAML; its name, the attempts and
            the model's address are its metadata.
        training_metrics: The final metrics, and the GPU hours used, pending and lost to restarts.

    Returns:
        job_name: The TFJob that completed the output.
        attempts: How many TFJobs the run took.
        model_uri: The SavedModel of the run, before it is judged.
    """
    from kfp_tfjob.components.launch_tfjob import engine
    from kfp_tfjob.components.step import step

    with step("launch_tfjob", run_id, output_uri, storage_endpoint, storage_region) as context:
        launched = engine.run(
            context,
            {
                "output_uri": output_uri,
                "storage_endpoint": storage_endpoint,
                "storage_region": storage_region,
                "storage_secret": storage_secret,
                "dataset_uri": dataset_uri,
                "model_name": model_name,
                "model_entry": model_entry,
                "code_uri": code_uri,
                "model_hyperparameters": model_hyperparameters,
                "train_workers": train_workers,
                "train_gpus": train_gpus,
                "train_epochs": train_epochs,
                "train_batch_size": train_batch_size,
                "train_image": train_image,
                "train_options": train_options,
                "pod": pod,
            },
            training_curves.path,
            training_job.path,
        )
        for name, value in {**launched.progress.final, **launched.gpu_hours}.items():
            training_metrics.log_metric(name, value)
        model_uri = str(context.run.model)
        training_job.metadata["job_name"] = launched.job_name
        training_job.metadata["attempts"] = launched.attempts
        training_job.metadata["model_uri"] = model_uri
    return (launched.job_name, launched.attempts, model_uri)
