"""`kfp-tfjob tensorboard`: the curves of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import open_client, with_connection
from kfp_tfjob.storage.errors import ConfigurationError, Problem

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.connection import Connection


@click.command()
@click.argument("run", metavar="RUN|RUN_URI")
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, if it is not AWS")
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
@with_connection
def tensorboard(run: str, endpoint: str, port: int, connection: Connection) -> None:
    """Show a run's curves in TensorBoard.

    TensorBoard reads them directly from S3. RUN is a run of Kubeflow Pipelines: an id, the
    beginning of one, a name, or `last`. RUN_URI is s3://BUCKET/PREFIX/runs/ID; the pages of
    launch_tfjob and of the last step show it.
    The credentials come from the AWS environment, and so does the endpoint without --endpoint.
    TensorBoard follows a job that is still training. Press Ctrl-C to stop.
    """
    from kfp_tfjob.pipelines.tensorboard import serve

    known = ""
    if "://" not in run:
        run, endpoint, known = _folder(connection, run, endpoint)
    serve(run, endpoint, port, click.echo, known)


def _folder(connection: Connection, run: str, endpoint: str) -> tuple[str, str, str]:
    """Return the folder, the store, and the name and state of a run of Kubeflow Pipelines.

    Raises:
        ConfigurationError: There is no such run, or its records cannot be read.
    """
    from kfp_tfjob.pipelines.kubeflow.records import Records, endpoint_of

    found = open_client(connection, endpoint).run(run)
    records = Records(found, endpoint)
    folder = records.folder
    if folder is None:
        raise ConfigurationError(
            Problem(
                f"the folder of run {found.name} cannot be found",
                received=records.trouble or "no output_uri",
                fix="set the AWS environment for its store, or name the folder: s3://...",
            )
        )
    known = f"{found.name} ({found.state})"
    return str(folder.base), endpoint_of(found.parameters, endpoint), known
