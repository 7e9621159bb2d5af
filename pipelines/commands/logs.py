"""`kfp-tfjob logs`: what the replicas of a run printed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.common.escaping import lines as safe

from ..ctrl_c import interruptible
from ..local.home import DEFAULT
from .shared_options import with_connection, with_home

if TYPE_CHECKING:
    from ..kubeflow.connection import Connection


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    metavar="NAME",
    help="chief-0, or worker for all workers",
)
@click.option("--follow", "-f", is_flag=True, help="wait for more lines until training ends")
@click.option("--timestamps", is_flag=True, help="show the time of each line, in UTC")
@click.option("--task", default="", metavar="KEY", help="the task_key, in your own pipeline")
@with_home
@click.option("--endpoint", default="", metavar="URL", help="the S3 store, if it is not AWS")
@click.option("--json", "as_json", is_flag=True, help="print each line as a JSON object")
@with_connection
def logs(
    run: str,
    replicas: tuple[str, ...],
    follow: bool,
    timestamps: bool,
    task: str,
    home: Path | None,
    endpoint: str,
    as_json: bool,
    connection: Connection,
) -> None:
    """Show the log lines of all replicas and attempts, even after their pods are gone.

    RUN is s3://BUCKET/PREFIX/runs/ID, an id, an id prefix, a name or `last`, of a local run or of
    Kubeflow Pipelines. The launcher stores the lines every 30 seconds; they are sorted by time.
    Credentials come from the AWS environment. For each replica and attempt, the last 8 MiB of text
    are kept.
    """
    from kfp_tfjob.common.names import check_task_key

    from ..logs import read
    from ..stored_run import stored_run

    ConfigurationError.raise_if(check_task_key(task))
    last_attempt = 0
    folder, local = home or DEFAULT, home is not None
    # Ctrl-C is the usual way to end --follow, so not an error.
    with (
        stored_run(run, folder, endpoint, connection, local, task) as stored,
        suppress(KeyboardInterrupt),
        interruptible(),
    ):
        for attempt, line in read(stored, replicas, follow):
            if as_json:
                fields = {"attempt": attempt, "time": line.stamp, "where": line.where}
                click.echo(json.dumps(fields | {"text": line.text}, ensure_ascii=False))
                continue
            if attempt != last_attempt and (last_attempt or attempt > 1):
                click.echo(f"--- attempt {attempt}", err=True)
            last_attempt = attempt
            stamp = f"{line.stamp} " if timestamps else ""
            click.echo(safe(f"{stamp}[{line.where}] {line.text}"))
