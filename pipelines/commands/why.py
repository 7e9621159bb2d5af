"""`kfp-tfjob why`: why a run failed, waits, or published nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_runs
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.reasons import Why
    from kfp_tfjob.pipelines.local.runs import HomeRuns


@click.command()
@click.argument("run", metavar="RUN")
@with_runs
@as_json
def why(client: Client | HomeRuns, run: str, json_: bool) -> None:
    """Explain why a run failed, is waiting or published nothing, and what to do.

    RUN is an id, an id prefix, a name or `last`, of a local run or of Kubeflow Pipelines. The
    cause comes from the store or, failing that, from the run's folder, the pods or Kubeflow
    Pipelines. Without a back end, `last` is the newest local run.
    """
    found = client.why(run)
    show_json(found) if json_ else show_why(found)


def show_why(found: Why) -> None:
    """Print why a run is as it is."""
    run = found.run
    show(f"{run.name if run.is_local else f'{run.name} ({run.short_id})'}: {found.summary}")
    show(f"What happened: {found.reason}")
    if found.remedy:
        show(f"What to do:    {found.remedy}")
    for check in found.checks:
        show(f"  {'passed' if check.passed else 'FAILED'}  {check.name}: {check.explanation}")
    for attempt in found.attempts:
        show(f"attempt {attempt.number}: {attempt.verdict or 'open'}: {attempt.sentence}")
        for text in attempt.log:
            show(f"  {text}")
    if found.log:
        show("The last lines of its log:")
        for text in found.log:
            show(f"  {text}")
    for note in found.notes:
        show(f"note: {note}")
    show(f"{'Files' if run.is_local else 'UI'}: {run.page}")
