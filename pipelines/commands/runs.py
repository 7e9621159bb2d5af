"""`kfp-tfjob runs`: the runs of a back end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_connection
from kfp_tfjob.pipelines.commands.output import age, as_json, show_json, show_table, store_endpoint

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.connection import Connection


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="how many"
)
@click.option("--model", default="", metavar="NAME", help="only runs of this model")
@with_connection
@store_endpoint
@as_json
def runs(connection: Connection, limit: int, model: str, endpoint: str, json_: bool) -> None:
    """List the newest runs of this pipeline.

    The verdict is published, blessed, not blessed, unchanged (there was nothing to train), or the
    reason of a failure. It comes from the store; without access to it, it is empty.
    """
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.plan import minutes
    from kfp_tfjob.pipelines.kubeflow.records import quiet

    quiet()
    found = Client.of(connection, endpoint).runs(limit, model)
    if json_:
        show_json(found)
        return
    rows = [
        (
            run.run_id[:8],
            run.name,
            run.state + (f" in {run.current.name}" if run.current and not run.is_over else ""),
            run.model,
            age(run.created),
            minutes(run.seconds),
            run.verdict,
        )
        for run in found
    ]
    show_table(("run", "name", "state", "model", "age", "duration", "verdict"), rows)
