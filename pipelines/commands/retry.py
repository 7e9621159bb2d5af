"""`kfp-tfjob retry`: run the failed step of a run again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_connection
from kfp_tfjob.pipelines.commands.output import (
    as_json,
    run_argument,
    show,
    show_json,
    store_endpoint,
)

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.connection import Connection


@click.command()
@run_argument
@click.option("--watch", "follows", is_flag=True, help="follow the run to its end")
@with_connection
@store_endpoint
@as_json
def retry(run: str, follows: bool, connection: Connection, endpoint: str, json_: bool) -> None:
    """Run the failed step of a run, and the steps after it, again.

    RUN is an id, the beginning of one, a name, or `last`. The run keeps its id and its parameters.
    Steps that succeeded do not run again, and the training resumes from its newest checkpoint.
    """
    from kfp_tfjob.pipelines.commands.watch import watch_run
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.records import quiet

    quiet()
    client = Client.of(connection, endpoint)
    found = client.retry(run)
    if json_:
        show_json(found)
    else:
        show(f"Retrying {found.name} ({found.run_id})\nUI:   {found.page}")
        show(f"next: kfp-tfjob watch {found.run_id[:8]}")
    if follows:
        sys.exit(watch_run(client, found.run_id, json_))
