"""Wrong input: a label that the data lacks, and a Secret that does not exist yet."""

import pytest

from kfp_tfjob.supervisor.exit_codes import DATA
from tests.kfp import cluster
from tests.kfp.browser import Browser
from tests.kfp.lab import Lab

pytestmark = pytest.mark.kfp


def test_wrong_label(lab: Lab, row, browser: Browser | None) -> None:
    run = lab.start("wrong-label", data_label="digitt")
    assert lab.finished(run) == "FAILED"
    failure = lab.bucket.document(f"runs/{run}/failure.json")
    assert (failure["step"], failure["code"]) == ("preflight", DATA)
    (problem,) = failure["problems"]
    assert "'digit'" in problem["received"] and "'digitt'" in problem["expected"]
    assert "'digit'" in problem["fix"]
    assert cluster.jobs(run) == []
    row(run)
    if browser:
        browser.go(f"/runs/details/{run}")
        browser.open("run_summary", "Visualization", shows=".markdown-viewer")
        browser.shoot("failure")


def test_missing_secret(lab: Lab, row) -> None:
    run = lab.start("secret", storage_secret=lab.other_secret)
    assert lab.finished(run) == "FAILED"
    why = lab.client.why(run)
    assert (why.run.state, why.step) == ("failed", "preflight")
    row(run, "without it")
    lab.copy_secret()
    began = lab.retry(run)
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.bucket.champions("secret") == [run]
    row(run, "retried", began)
