"""`kfp-tfjob cancel`: end a run, and wait until none of its pods run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_run
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client


@click.command()
@with_run
@click.option(
    "--limit", type=click.IntRange(1), default=300, show_default=True, help="seconds to wait"
)
@as_json
def cancel(client: Client, run: str, limit: int, json_: bool) -> None:
    """End a run, and wait until none of its pods run.

    RUN is an id, an id prefix, a name or `last`. Training saves a checkpoint before it stops. With
    a kubeconfig, the command also checks the pods.

    Exit codes: 0 nothing is running anymore, as far as could be checked; 1 something is still
    running after --limit seconds; 2 the run had already ended.
    """
    found = client.cancel(run, limit, (lambda text: None) if json_ else show)
    if json_:
        show_json(found)
    elif found.complete:
        show(f"No step of {found.run.name} is running after {found.seconds:g} s.")
    else:
        left = f"; left: {found.left}" if found.left else ""
        show(f"After {found.seconds:g} s, the run is {found.run.state}{left}.")
    if not json_:
        show("\n".join(found.checked))
        show(f"To continue: kfp-tfjob retry {found.run.run_id[:8]}")
    sys.exit(0 if found.complete else 1)
