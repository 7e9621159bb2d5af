"""`kfp-tfjob runs`: the runs of a back end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_client
from kfp_tfjob.pipelines.commands.output import age, as_json, show, show_json, show_table
from kfp_tfjob.storage.formatting import minutes

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client


@click.command()
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="how many"
)
@click.option("--model", default="", metavar="NAME", help="only runs of this model")
@with_client
@as_json
def runs(client: Client, limit: int, model: str, json_: bool) -> None:
    """List the newest runs of this pipeline on Kubeflow Pipelines.

    The verdict is published, blessed, not blessed, lost the race, unchanged (there was nothing to
    train), not evaluated (train_options.evaluate is false), or the reason for a failure. It is read
    from the store, and empty without access to it.
    """
    troubles: list[str] = []
    found = client.runs(limit, model, tell=troubles.append)
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
    for trouble in troubles[:1]:
        show(f"note: verdicts are missing, because the store cannot be read from here: {trouble}")
    if not found:
        show(f"There is no run{' of this model' if model else ''} yet.")
