"""`kfp-tfjob cancel`: end a run, and wait until none of its pods run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .output import as_json, show, show_json
from .shared_options import with_runs

if TYPE_CHECKING:
    from ..kubeflow.client import Client
    from ..local.runs import HomeRuns


@click.command()
@click.argument("run", metavar="RUN")
@with_runs
@click.option(
    "--limit", type=click.IntRange(1), default=300, show_default=True, help="seconds to wait"
)
@as_json
def cancel(client: Client | HomeRuns, run: str, limit: int, json_: bool) -> None:
    """End a run, and wait until none of its pods run.

    RUN is an id, an id prefix, a name or `last`, of a local run or of Kubeflow Pipelines. Training
    saves a checkpoint before it stops. With a kubeconfig, the command also checks the pods.

    Exit codes: 0 nothing is running anymore, as far as could be checked; 1 something is still
    running after --limit seconds; 2 the run had already ended.
    """
    ending = client.cancel(run, limit, (lambda text: None) if json_ else show)
    if json_:
        show_json(ending)
    elif ending.run.state == "succeeded":
        show(f"{ending.run.name} succeeded before it could be ended.")
    elif ending.complete:
        show(f"No step of {ending.run.name} is running after {ending.seconds:g} s.")
    else:
        remaining = f"; left: {ending.left}" if ending.left else ""
        show(f"After {ending.seconds:g} s, the run is {ending.run.state}{remaining}.")
    if not json_ and ending.run.state != "succeeded":
        show("\n".join(ending.checked))
        show(f"To continue: {ending.run.to_continue}")
    sys.exit(0 if ending.complete else 1)
