"""Training that is disturbed: a lost launcher, a lost chief, Terminate and Retry."""

import pytest

from tests.kfp import cluster
from tests.kfp.lab import LONG, Lab, until

pytestmark = pytest.mark.kfp


def test_lost_launcher(lab: Lab, row) -> None:
    run = lab.start("launcher", **LONG)
    lab.trains(run)
    launcher = cluster.pod_of_step(run, "launch_tfjob")
    cluster.delete_pod(launcher["metadata"]["name"])
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.ends(run) == ["succeeded"]  # the next one adopted it
    assert lab.bucket.champions("launcher") == [run]
    row(run)


def test_lost_chief(lab: Lab, row) -> None:
    run = lab.start("chief", **LONG)
    lab.trains(run)
    chief = until("the chief", lambda: cluster.chief(run), 60)
    cluster.delete_pod(chief["metadata"]["name"])
    assert lab.finished(run) == "SUCCEEDED"
    first, second = lab.ends(run)
    assert first != second == "succeeded"
    assert lab.bucket.verified(f"runs/{run}")["attempt"] == 2
    assert lab.bucket.champions("chief") == [run]
    row(run)


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
