"""The KFP interface of evaluate.

The verdict is the only output and is unnamed, because kfp.local evaluates a condition on a named
output as false. Everything else is below runs/<run_id>/evaluation. Called by the pipeline in
`tfjob_training.py`.
"""

from kfp import dsl

from kfp_tfjob.options.container_images import TRAINER

from ..parameter_docs import with_parameter_docs


@dsl.component(base_image=TRAINER, install_kfp_package=False)
@with_parameter_docs
def evaluate(
    *,
    run_id: str,
    output_uri: str,
    dataset_uri: str,
    model_name: str,
    model_uri: str,
    task_key: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    pod: dict = {},
    inputs_digest: str = "",
    gate: dict = {
        "primary_metric": "auto",
        "mode": "superior",
        "confidence": 0.95,
        "first_model": "beat_baseline",
    },
    evaluation_metrics: dsl.Output[dsl.Metrics],
    confusion_and_roc: dsl.Output[dsl.ClassificationMetrics],
    evaluation_report: dsl.Output[dsl.HTML],
    verdict_summary: dsl.Output[dsl.Markdown],
) -> bool:
    """Score the model on the test rows, compare it with the champion, and give the verdict.

    Args:
        run_id: The run's id.
        dataset_uri: The prepared dataset.
        model_uri: The run's SavedModel.
        task_key: Keeps several tasks of this step in one run apart: at most 20 lowercase letters,
            digits and -.
        pod: The step reads pod.evaluate.gpus, the number of GPUs that the models use.
        inputs_digest: From preflight; a later run with the same one does not have to train; empty
            to leave no record.
        evaluation_metrics: Every metric of the model, the champion and the baseline.
        confusion_and_roc: Confusion matrix, and the ROC curve of two classes.
        evaluation_report: The whole evaluation as a page.
        verdict_summary: The run's result, because a run that is not blessed ends with this step.

    Returns:
        Output: Whether the model is to be published.
    """
    from kfp_tfjob.components.evaluate.engine import run
    from kfp_tfjob.components.notify_end import step_ended
    from kfp_tfjob.components.step import gpus_of, step
    from kfp_tfjob.components.summary import summary

    storage = (storage_endpoint, storage_region)
    with step("evaluate", run_id, output_uri, *storage, task_key) as context:
        model = (dataset_uri, model_name, model_uri, gate, inputs_digest)
        done = run(context, *model, gpus_of(pod))
        for name, value in done.metrics.items():
            evaluation_metrics.log_metric(name, value)
        if done.confusion:
            confusion_and_roc.log_confusion_matrix(*done.confusion)
        if done.roc:
            confusion_and_roc.log_roc_curve(*done.roc)
        with open(evaluation_report.path, "w") as file:
            file.write(done.html)
        with open(verdict_summary.path, "w") as file:
            file.write(summary(context, model_name))
        verdict_summary.metadata.update(model_uri=model_uri, blessed=done.blessed)
        if not done.blessed:
            step_ended(context, model_name)
    return done.blessed
