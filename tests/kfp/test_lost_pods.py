"""Pods that are deleted during training: the launcher's, and the chief's."""

import pytest

from tests.kfp import cluster
from tests.kfp.lab import Lab, until
from tests.kfp.parameters import LONG

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
