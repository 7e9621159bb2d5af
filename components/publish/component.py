"""The KFP interface of publish.

Called by the pipeline in `tfjob_training.py`.
"""

# Kubeflow Pipelines reads the outputs from a call in an annotation.
# pyright: reportInvalidTypeForm=false

from typing import NamedTuple

from kfp import dsl

from kfp_tfjob.options.container_images import TRAINER

from ..parameter_docs import with_parameter_docs


@dsl.component(base_image=TRAINER, install_kfp_package=False)
@with_parameter_docs
def publish(
    *,
    run_id: str,
    output_uri: str,
    model_name: str,
    model_uri: str,
    dataset_uri: str,
    task_key: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    pod: dict = {},
    published_model: dsl.Output[dsl.Model],
    model_card: dsl.Output[dsl.Markdown],
    publish_summary: dsl.Output[dsl.Markdown],
) -> NamedTuple(
    "Outputs", [("version", int), ("version_uri", str), ("champion_uri", str), ("outcome", str)]
):
    """Publish a blessed model as a new version and make it the champion.

    If another run was promoted since the verdict, the model is evaluated again. If it is not
    blessed again, or loses the race again, the step succeeds without publishing anything.

    Args:
        run_id: The run's id.
        model_uri: The run's SavedModel.
        dataset_uri: The dataset it was evaluated on.
        task_key: The task_key of its evaluate task.
        pod: The step reads pod.evaluate.gpus, the number of GPUs that the models use, and the
            variables of MLflow in pod.all.env.
        published_model: The version as its model card; version, address, size, digests and metrics
            are its metadata. Without a version, the reason.
        model_card: The model card; the addresses of version and champion are its metadata.
        publish_summary: The run's result, because a run that publishes ends with this step.

    Returns:
        version: The version number; 0 if nothing was published.
        version_uri: Where its files are.
        champion_uri: The record that makes it the champion.
        outcome: `published`, `not_blessed` by the second verdict, or `lost_race`.
    """
    from kfp_tfjob.components.notify_end import step_ended
    from kfp_tfjob.components.publish.engine import run
    from kfp_tfjob.components.publish.model_artifact import published_model as metadata_of
    from kfp_tfjob.components.step import gpus_of, step
    from kfp_tfjob.components.summary import summary
    from kfp_tfjob.registry.tracking import pod_variables

    storage = (storage_endpoint, storage_region)
    with step("publish", run_id, output_uri, *storage, task_key) as context:
        verdict = str(context.run.verdict)
        variables = pod_variables(pod)
        done = run(context, model_name, model_uri, verdict, dataset_uri, gpus_of(pod), variables)
        with open(model_card.path, "w") as file:
            file.write(done.card)
        model_card.metadata.update(version_uri=done.version_uri, champion_uri=done.champion_uri)
        with open(publish_summary.path, "w") as file:
            file.write(summary(context, model_name))
        metadata_of(context, model_name, done).write(published_model, done.card.encode())
        step_ended(context, model_name)
    return done.version, done.version_uri, done.champion_uri, done.outcome
