"""`kfp-tfjob retry`: run the failed step of a run again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .output import as_json, show, show_json
from .shared_options import with_runs
from .terminal import with_verbose

if TYPE_CHECKING:
    from ..kubeflow.client import Client
    from ..local.runs import HomeRuns


@click.command()
@click.argument("run", metavar="RUN")
@with_runs
@click.option("--watch", "follows", is_flag=True, help="follow the run until it ends")
@as_json
@with_verbose
def retry(client: Client | HomeRuns, run: str, follows: bool, json_: bool, verbose: bool) -> None:
    """Rerun a run's failed step and the steps after it.

    RUN is an id, an id prefix, a name or `last`. The run keeps its id and parameters. Steps that
    succeeded do not run again, and training resumes from its newest checkpoint. To continue a local
    run, use `kfp-tfjob run --run-id ID` instead.
    """
    from .watch import watch_run

    retried = client.retry(run)
    if json_:
        show_json(retried)
    else:
        show(f"Retrying {retried.name} ({retried.run_id})\nUI:   {retried.page}")
        show(f"next: kfp-tfjob watch {retried.run_id[:8]}")
    if follows:
        sys.exit(watch_run(client, retried.run_id, json_, verbose))
