"""`kfp-tfjob render`: the TFJob that parameters create."""

from __future__ import annotations

from typing import Any

import click

from kfp_tfjob.pipelines.commands.parameters import parameters_of, with_parameters


@click.command()
@with_parameters
@click.option("--run-id", default="RUN-ID", help="a run id as KFP assigns it", show_default=True)
def render(run_id: str, **given: Any) -> None:
    """Print the TFJob that the parameters create."""
    from kfp_tfjob.components.launch_tfjob.render import render as render_job
    from kfp_tfjob.components.preflight.parameters import check

    values = parameters_of(given).values
    check(values)
    click.echo(render_job(values, run_id), nl=False)
