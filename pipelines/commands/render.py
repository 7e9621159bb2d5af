"""`kfp-tfjob render`: the TFJob that parameters create."""

from __future__ import annotations

from typing import Any

import click

from kfp_tfjob.options.parameters import RunParameters

from .parameters import parameters_of, with_parameters

_GROUPS = ("output_uri", "storage_", "model_name", "model_hyperparameters", "train_", "pod")


@click.command()
@with_parameters()
@click.option("--run-id", default="RUN-ID", help="the run id to use", show_default=True)
def render(run_id: str, **arguments: Any) -> None:
    """Print the TFJob that the parameters create."""
    from kfp_tfjob.components.preflight.plan import RunPlan

    values = parameters_of(arguments).values
    RunPlan.parse(values)
    click.echo(first_attempt(values, run_id), nl=False)


def first_attempt(values: RunParameters, run_id: str) -> str:
    """Return the job of a run's first attempt as YAML; parameters of other steps are ignored.

    Raises:
        ConfigurationError: One problem for every invalid parameter.
    """
    from dataclasses import replace

    from kfp_tfjob.jobs.job_identity import Identity
    from kfp_tfjob.jobs.manifest import build_job, to_yaml
    from kfp_tfjob.jobs.spec import JobSpec
    from kfp_tfjob.options import address_fields
    from kfp_tfjob.options.no_data import has_data
    from kfp_tfjob.storage.layout import Layout
    from kfp_tfjob.user_code.model_code import ModelCode

    code = ModelCode.of_run(values)
    layout = Layout.parse(values["output_uri"])
    spec = JobSpec.parse(
        model_entry=code.entry(),
        dataset_uri=str(layout.dataset("DATASET-DIGEST")) if has_data(values) else "",
        **{name: values[name] for name in values if name.startswith(_GROUPS)},
    )
    # The run's tick is unknown here, so its fields stay.
    folder = address_fields.folder(layout.template, None, spec.model_name, spec.gpus)
    run = layout.run(run_id, folder)
    spec = replace(spec, code_uri="" if code.in_image else str(run.code))
    return to_yaml(build_job(spec, Identity(run_id, 1, run_uri=str(run.base))))
