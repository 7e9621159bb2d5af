"""`kfp-tfjob tensorboard`: the curves of a run."""

from __future__ import annotations

import click


@click.command()
@click.argument("run_uri", metavar="RUN_URI")
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, if it is not AWS")
@click.option("--port", type=click.IntRange(0, 65535), default=6006, show_default=True)
def tensorboard(run_uri: str, endpoint: str, port: int) -> None:
    """Show the curves of a run in TensorBoard.

    TensorBoard reads them directly from S3. RUN_URI is s3://BUCKET/PREFIX/runs/ID; the pages of
    launch_tfjob and of the last step show it.
    The credentials come from the AWS environment, and so does the endpoint without --endpoint.
    TensorBoard follows a job that is still training. Press Ctrl-C to stop.
    """
    from kfp_tfjob.pipelines.tensorboard import serve

    serve(run_uri, endpoint, port, click.echo)
