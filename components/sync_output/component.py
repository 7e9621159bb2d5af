"""The KFP interface of sync_output.

Called by the pipeline in `tfjob_training.py`.
"""

# Kubeflow Pipelines reads the outputs from a call in an annotation.
# pyright: reportInvalidTypeForm=false

from typing import NamedTuple

from kfp import dsl

from kfp_tfjob.options import container_images

from ..parameter_docs import with_parameter_docs


@dsl.component(base_image=container_images.TOOLS, install_kfp_package=False)
@with_parameter_docs
def sync_output(
    *,
    run_id: str,
    output_uri: str,
    model_name: str = "",
    evaluate: bool = True,
    task_key: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    stored_output: dsl.Output[dsl.Markdown],
) -> NamedTuple("Outputs", [("model_uri", str), ("output_digest", str)]):
    """Verify that training output is complete in S3, or fail with what is missing.

    Args:
        run_id: The run whose output is verified.
        model_name: Only the notification of a run that ends with this step contains it.
        evaluate: Whether the model is evaluated next; if not, the output needs no model.
        task_key: The key of the launch_tfjob whose output is verified.
        stored_output: How much was verified, and its digest; the model's address and the digest
            are its metadata.

    Returns:
        model_uri: The directory of the SavedModel; empty without one.
        output_digest: SHA-256 of the manifest, which lists the whole output.
    """
    from pathlib import Path

    from kfp_tfjob.components.notify_end import step_ended
    from kfp_tfjob.components.step import step
    from kfp_tfjob.components.sync_output import sync

    storage = (storage_endpoint, storage_region)
    with step("sync_output", run_id, output_uri, *storage, task_key) as context:
        result = sync.run(context, evaluate)
        Path(stored_output.path).write_text(result.markdown)
        stored_output.metadata["model_uri"] = result.model_uri
        stored_output.metadata["output_digest"] = result.output_digest
        if not evaluate:
            step_ended(context, model_name)
    return (result.model_uri, result.output_digest)
