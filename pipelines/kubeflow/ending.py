"""Ends a run, and waits until none of its pods run any more.

The back end reports a run as over while its training job still holds GPUs. So the pods and jobs are
looked up on the cluster, if this machine can reach it. Called by `client.py`, and by
`runs.py` for local runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kfp_tfjob.common.errors import ConfigurationError, Problem

from .connection import BackEnd
from .pods import RunOnCluster
from .records import Records
from .runs import Run, read_run

_SECONDS = 1.0  # between two looks; a person waits


@dataclass(frozen=True)
class Cancelled:
    """The result of cancelling a run.

    Attributes:
        run: The run now.
        seconds: From the request until no pod ran any more, or until the time limit.
        complete: Whether no pod runs any more, as far as could be checked.
        left: The pods and jobs that still exist, as text; empty without any.
        checkpoint: The step of the newest stored checkpoint; None without one, or if the store
            cannot be read.
        checked: The things that were checked and that could not be, in sentences.
    """

    run: Run
    seconds: float
    complete: bool
    left: str
    checkpoint: int | None
    checked: tuple[str, ...]


def cancel(
    back_end: BackEnd,
    run: Run,
    endpoint: str = "",
    limit: float = 300,
    tell: Callable[[str], None] = lambda text: None,
) -> Cancelled:
    """Terminate a run, and wait until none of its pods run; arguments as for `Client.cancel`."""
    check_not_over(run)
    cluster = RunOnCluster(run.run_id, back_end.namespace)
    cluster.snapshot()  # before its end: pods show that this is the right cluster
    began = time.monotonic()
    if run.state != "canceling":
        back_end.call("end the run", back_end.sdk.runs.run_service_terminate_run, run_id=run.run_id)
    last_message = ""
    while True:
        run = read_run(back_end, run.run_id)
        snapshot = cluster.snapshot()
        spent = time.monotonic() - began
        remaining = str(snapshot) if snapshot else ""
        message = f"{run.state}{f', {remaining} left' if remaining else ''}"
        if message != last_message:
            tell(f"{spent:4.0f} s  {message}")
            last_message = message
        if (run.is_over and not remaining) or spent > limit:
            break
        time.sleep(_SECONDS)
    records = Records(run, endpoint)
    checkpoint = records.checkpoint()
    return Cancelled(
        run=run,
        seconds=round(spent, 1),
        complete=run.is_over and not remaining,
        left=remaining,
        checkpoint=checkpoint,
        checked=(_describe_pods(cluster), describe_checkpoint(records, checkpoint)),
    )


def check_not_over(run: Run) -> None:
    """Check that a run can be cancelled.

    Raises:
        ConfigurationError: The run is over.
    """
    if run.is_over:
        raise ConfigurationError(
            Problem(
                f"the run {run.name} has already ended, so it cannot be cancelled",
                received=f"{run.state}, finished {run.finished}" if run.finished else run.state,
                expected="a run that is pending or running",
                fix="list the runs that are not over with `kfp-tfjob runs`",
            )
        )


def check_can_be_retried(run: Run) -> None:
    """Check that a run has failed or was cancelled.

    Raises:
        ConfigurationError: The run has succeeded, or is not over.
    """
    if run.state not in ("failed", "canceled"):
        raise ConfigurationError(
            Problem(
                f"the run {run.name} cannot be retried",
                received=run.state,
                expected="a run that failed or was cancelled",
                fix="start a new run"
                if run.is_over
                else f"wait until it ends: kfp-tfjob watch {run.short_id}",
            )
        )


def _describe_pods(cluster: RunOnCluster) -> str:
    if cluster.trouble:
        return f"Pods and jobs were not checked: {cluster.trouble}."
    if not cluster.known:
        return (
            f"Pods and jobs were not checked: {cluster.where} of this kubeconfig never had a pod of"
            " the run."
        )
    return f"Pods and jobs were checked in {cluster.where}."


def describe_checkpoint(records: Records, checkpoint: int | None) -> str:
    """Return a sentence with the step where a retry continues."""
    if records.trouble:
        return f"The newest checkpoint is unknown: {records.trouble}."
    if checkpoint is None:
        return "No checkpoint is stored; a retry trains from the beginning."
    return f"The newest stored checkpoint is of step {checkpoint:,}; a retry continues there."
