"""The KFP interface of prepare_data.

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
def prepare_data(
    *,
    run_id: str,
    output_uri: str,
    data_uri: str,
    data_label: str = "",
    data_options: dict = {},
    model_name: str = "",
    gate: dict = {
        "primary_metric": "auto",
        "mode": "superior",
        "confidence": 0.95,
        "first_model": "beat_baseline",
    },
    source_digest: str = "",
    task_key: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    pod: dict = {},
    dataset: dsl.Output[dsl.Dataset],
    data_report: dsl.Output[dsl.HTML],
    data_metrics: dsl.Output[dsl.Metrics],
) -> NamedTuple("Outputs", [("dataset_uri", str), ("dataset_digest", str)]):
    """Turn the source into shuffled, split TFRecord shards with schema and statistics.

    Args:
        run_id: The run's id.
        data_uri: Preflight fills in these fields; this step does not. If the address is empty, so
            are the step's outputs.
        model_name: The data is compared with the data of this model's champion; if the name is
            empty, with none.
        gate: The step checks that the metrics suit the label and the slices suit the columns.
        source_digest: The digest of the data that preflight checked; empty without preflight.
        task_key: Keeps several tasks of this step in one run apart: at most 20 lowercase letters,
            digits and -.
        pod: The step reads pod.prepare.cpu, the number of workers.
        dataset: The prepared dataset: schema.json, with address, size and digests as its metadata.
        data_report: A verdict on the data, every feature and the label as a page; its metadata
            names the dataset.
        data_metrics: Rows, features, duplicates, bad rows, and how far the data has moved.

    Returns:
        dataset_uri: The prepared dataset, complete once its manifest exists; empty without data.
        dataset_digest: Its name: the same for equal data and options.
    """
    from kfp_tfjob.components.prepare_data.card import write_card, write_empty_card
    from kfp_tfjob.components.prepare_data.data_validation import validate
    from kfp_tfjob.components.prepare_data.engine import run, without_data
    from kfp_tfjob.components.prepare_data.report import page_of
    from kfp_tfjob.components.step import cores_of, step
    from kfp_tfjob.judging.gate_columns import check_gate

    storage = (storage_endpoint, storage_region)
    with step("prepare_data", run_id, output_uri, *storage, task_key) as context:
        if not data_uri.strip():
            with open(data_report.path, "w") as file:
                file.write(without_data(data_label, data_options))
            write_empty_card(context, dataset)
            return "", ""
        cores = cores_of(pod)
        done = run(context, data_uri, data_label, data_options, source_digest, cores=cores)
        check_gate(gate, done.schema)
        validation = validate(context, done, model_name, data_options)
        for name, value in (done.metrics | validation.metrics).items():
            data_metrics.log_metric(name, value)
        with open(data_report.path, "w") as file:
            file.write(page_of(context, done, validation))
        data_report.metadata.update(dataset_uri=done.dataset_uri, reused=done.reused)
        write_card(context, done, dataset)
    return done.dataset_uri, done.dataset_digest
