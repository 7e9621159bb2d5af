"""`kfp-tfjob tensorboard`: the curves of a run, or of the runs of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..local.home import DEFAULT
from .shared_options import with_connection, with_home
from .store import open_models

if TYPE_CHECKING:
    from ..kubeflow.connection import Connection


@click.command()
@click.argument("run", metavar="[RUN|RUN_URI]", default="")
@click.option("--model", default="", metavar="NAME", help="show the runs of this model instead")
@click.option(
    "--limit",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="with --model: how many runs",
)
@click.option(
    "--output",
    default="",
    metavar="URI",
    help="with --model: output_uri of the runs [default: as for models]",
)
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, if it is not AWS")
@with_home
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
@with_connection
def tensorboard(
    run: str,
    model: str,
    limit: int,
    output: str,
    endpoint: str,
    home: Path | None,
    port: int,
    connection: Connection,
) -> None:
    """Show a run's curves in TensorBoard, or those of the newest evaluated runs of a model.

    TensorBoard reads them directly from S3. RUN is a local run's id or, on Kubeflow Pipelines, an
    id, an id prefix, a name or `last`. RUN_URI is s3://BUCKET/PREFIX/runs/ID; the pages of
    launch_tfjob and of the last step show it.
    Credentials and, without --endpoint, the endpoint come from the AWS environment.
    TensorBoard follows a job that is still training. Press Ctrl-C to stop.

    With --model, v7-ID is the run that was published as version 7.
    """
    from ..stored_run import stored_run
    from ..tensorboard import serve, serve_model

    if bool(run) == bool(model):
        raise click.UsageError("pass either a run, such as last, or --model")
    if model:
        models = open_models(output, endpoint, "", home)
        serve_model(models.store, models.layout, model, limit, port, click.echo)
        return
    folder, local = home or DEFAULT, home is not None
    with stored_run(run, folder, endpoint, connection, local) as stored:
        serve(stored, port, click.echo)
