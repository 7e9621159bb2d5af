"""`kfp-tfjob why`: why a run failed, waits, or published nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.pipelines.commands.connection import with_run
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.reasons import Why


@click.command()
@with_run
@as_json
def why(client: Client, run: str, json_: bool) -> None:
    """Explain why a run failed, is waiting or published nothing, and what to do.

    RUN is an id, an id prefix, a name or `last`. The cause comes from the store or, failing that,
    from the pods or Kubeflow Pipelines.
    """
    found = client.why(run)
    show_json(found) if json_ else show_why(found)


def show_why(found: Why) -> None:
    """Print why a run is as it is."""
    show(f"{found.run.name} ({found.run.run_id[:8]}): {found.summary}")
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
    show(f"UI: {found.run.page}")
