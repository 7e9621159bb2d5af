"""The KFP interface of finish.

Called by the pipeline in `tfjob_training.py`, as its exit task.
"""

from kfp import dsl

from kfp_tfjob.options.container_images import TOOLS

from ..parameter_docs import with_parameter_docs


@dsl.component(base_image=TOOLS, install_kfp_package=False)
@with_parameter_docs
def finish(
    *,
    run_id: str,
    output_uri: str,
    model_name: str = "",
    storage_endpoint: str = "",
    storage_region: str = "",
    run_summary: dsl.Output[dsl.Markdown],
):
    """Report how the run ended: what was decided, or what failed and what to do about it.

    Args:
        run_id: The run's id.
        model_name: Empty for a pipeline that publishes nothing.
        run_summary: What happened, as a page.
    """
    from kfp_tfjob.components.finish.engine import run_as_exit_task

    with open(run_summary.path, "w") as file:
        file.write(
            run_as_exit_task(run_id, output_uri, storage_endpoint, storage_region, model_name)
        )
