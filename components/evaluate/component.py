"""The KFP interface of evaluate.

The verdict is its only output and so has no name: kfp.local takes a condition on an output that
has one for false. The rest is found below runs/<run_id>/evaluation.
"""

from kfp import dsl

from components.images import TRAINER


@dsl.component(base_image=TRAINER, install_kfp_package=False)
def evaluate(
    run_id: str,
    output_uri: str,
    storage_endpoint: str,
    storage_region: str,
    dataset_uri: str,
    model_name: str,
    model_uri: str,
    gate: dict,
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
    report: dsl.Output[dsl.HTML],
) -> bool:
    """Score the model on the test rows, compare it with the champion, and give the verdict.

    Args:
        run_id: The id of the run.
        output_uri: As in the form.
        storage_endpoint: As in the form.
        storage_region: As in the form.
        dataset_uri: The prepared dataset.
        model_name: As in the form.
        model_uri: The SavedModel of the run.
        gate: As in the form.
        metrics: Every metric of the model, the champion and the baseline.
        classification: Confusion matrix, and the ROC curve of two classes.
        report: The whole evaluation for a person.

    Returns:
        Whether the model is to be published.
    """
    from components.evaluate.engine import run
    from components.step import step

    with step("evaluate", run_id, output_uri, storage_endpoint, storage_region) as context:
        done = run(context, dataset_uri, model_name, model_uri, gate)
        for name, value in done.metrics.items():
            metrics.log_metric(name, value)
        if done.confusion:
            classification.log_confusion_matrix(*done.confusion)
        if done.roc:
            classification.log_roc_curve(*done.roc)
        with open(report.path, "w") as file:
            file.write(done.html)
    return done.blessed
