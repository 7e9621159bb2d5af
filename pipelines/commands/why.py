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
    explanation = client.why(run)
    show_json(explanation) if json_ else show_why(explanation)


def show_why(explanation: Why) -> None:
    """Print the reason for a run's state, with its remedy, checks, attempts and last log lines."""
    show(f"{explanation.run.name} ({explanation.run.run_id[:8]}): {explanation.summary}")
    show(f"What happened: {explanation.reason}")
    if explanation.remedy:
        show(f"What to do:    {explanation.remedy}")
    for check in explanation.checks:
        show(f"  {'passed' if check.passed else 'FAILED'}  {check.name}: {check.explanation}")
    for attempt in explanation.attempts:
        show(f"attempt {attempt.number}: {attempt.verdict or 'open'}: {attempt.sentence}")
        for log_line in attempt.log:
            show(f"  {log_line}")
    if explanation.log:
        show("The last lines of its log:")
        for log_line in explanation.log:
            show(f"  {log_line}")
    for note in explanation.notes:
        show(f"note: {note}")
    show(f"UI: {explanation.run.page}")
