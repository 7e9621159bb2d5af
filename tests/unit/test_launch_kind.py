"""Which kind of job a run has: its first claim decides, then preflight, then the cluster."""

import logging
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from kfp_tfjob.components.launch_tfjob import earlier_job, engine
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.launch_tfjob.launch_context import Launch
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.storage.layout import Layout
from tests.unit.launch_parameters import DEFAULTS, RUN_ID
from tests.unit.test_job_kind import ABSENT, Cluster

# Stored by a version that knew only TFJobs.
OLD_CLAIM = Path(__file__).parents[1] / "data/stored/runs/interrupted/attempts/0001.json"
OLD_JOB = Path(__file__).parents[1] / "golden/tfjob-default.yaml"  # as it was before JobSets
BOTH = {"tfjobs": False, "jobsets": False}


def step(claim: bytes = b"") -> Step:
    store = Mock(numbers=Mock(return_value=[1] if claim else []), read=Mock(return_value=claim))
    return Step("launch_tfjob", RUN_ID, Layout.parse("s3://kfp-tfjob"), store)


def claim_of(kind: JobKind) -> bytes:
    return replace(Claim.first(1, 0), kind=kind.name).to_bytes(RUN_ID, "the job", "its hash")


def settled(monkeypatch, place: Step, decided: str, cluster: dict | None, **options) -> JobKind:
    """Return the kind of a launch; without a cluster, the launch must not ask for one."""
    api = Mock(side_effect=AssertionError) if cluster is None else lambda *_: Cluster(cluster)
    monkeypatch.setattr(engine, "open_cluster", api)
    monkeypatch.setattr(engine, "is_local", lambda: False)
    spec = JobSpec.parse(**DEFAULTS | {"train_options": options})
    return engine.settled(place, spec, decided).kind


@pytest.mark.parametrize("asked", ["auto", "jobset"])
def test_a_run_with_an_old_claim_stays_one_of_tfjobs(monkeypatch, caplog, asked) -> None:
    assert b'"kind"' not in OLD_CLAIM.read_bytes()
    with caplog.at_level(logging.WARNING):
        kind = settled(monkeypatch, step(OLD_CLAIM.read_bytes()), "JobSet", None, job=asked)
    assert kind is TFJOB
    assert ("TFJob" in caplog.text) == (asked == "jobset")


@pytest.mark.parametrize(
    ("claimed", "decided", "cluster", "kind"),
    [
        (TFJOB, "JobSet", None, TFJOB),  # no retry changes it
        (JOBSET, "TFJob", None, JOBSET),
        (None, "TFJob", None, TFJOB),  # the first launch takes what preflight found
        (None, "JobSet", None, JOBSET),
        (None, "", BOTH, TFJOB),  # a schedule of an old pipeline
        (None, "", BOTH | {"tfjobs": ABSENT}, JOBSET),
    ],
)
def test_the_claim_decides_then_preflight_then_the_cluster(
    monkeypatch, claimed, decided, cluster, kind
) -> None:
    place = step(claim_of(claimed) if claimed else b"")
    assert settled(monkeypatch, place, decided, cluster) is kind


def test_the_step_of_an_old_pipeline_has_no_kind() -> None:
    assert launch_tfjob.component_spec.inputs["job_kind"].default == ""


def test_a_running_tfjob_of_an_older_version_is_adopted(monkeypatch) -> None:
    place = step(OLD_CLAIM.read_bytes())
    kind = settled(monkeypatch, place, "JobSet", None)
    spec = replace(JobSpec.parse(**DEFAULTS), kind=kind)
    running = yaml.safe_load(OLD_JOB.read_text()) | {"status": {}}
    backend = Mock(get=Mock(return_value=running), pods=Mock(return_value=[]))
    assert earlier_job.adopt(Launch(place, spec, backend), [1])
    backend.get.assert_called_once_with(f"tfjob-{RUN_ID}-1")
    backend.create.assert_not_called()
