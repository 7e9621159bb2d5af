"""Terminate while a job trains, and Retry after it."""

import pytest

from tests.kfp import cluster
from tests.kfp.lab import Lab, until
from tests.kfp.parameters import LONG

pytestmark = pytest.mark.kfp


def test_terminate_and_retry(lab: Lab, row) -> None:
    run = lab.start("terminate", **LONG)
    step = lab.trains(run)
    lab.sdk.terminate_run(run)
    until("the end of every pod", lambda: not cluster.alive(run), 180)
    assert lab.finished(run) in ("FAILED", "CANCELED")
    stored = lab.bucket.checkpoint(run)
    assert stored >= step
    assert lab.ends(run) == ["cancelled"]
    why = lab.client.why(run)
    assert [it.verdict for it in why.attempts] == ["cancelled"]
    assert why.run.was_cancelled
    row(run, "terminated")

    began = lab.retry(run)
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.ends(run) == ["cancelled", "succeeded"]
    assert lab.bucket.verified(f"runs/{run}")["attempt"] == 2
    assert lab.bucket.champions("terminate") == [run]
    row(run, "retried", began)
