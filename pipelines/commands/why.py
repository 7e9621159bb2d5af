"""`kfp-tfjob why`: why a run failed, waits, or published nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .output import as_json, show, show_json
from .shared_options import with_runs

if TYPE_CHECKING:
    from ..kubeflow.client import Client
    from ..kubeflow.why import Why
    from ..local.runs import HomeRuns


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
    explanation = client.why(run)
    show_json(explanation) if json_ else show_why(explanation)


def show_why(explanation: Why) -> None:
    """Print the reason for a run's state, with its remedy, checks, attempts and last log lines."""
    run = explanation.run
    name = run.name if run.is_local else f"{run.name} ({run.short_id})"
    show(f"{name}: {explanation.summary}")
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
    show(f"{'Files' if run.is_local else 'UI'}: {run.page}")
    if explanation.docs:
        show(f"Docs: {explanation.docs}")
