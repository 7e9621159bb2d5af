"""Which Workflow says that its run was ended: everything else is a drain and ends no job."""

from datetime import UTC, datetime

import pytest

from kfp_tfjob.cluster.run_watch import was_terminated, why_ended

BEGAN = "2026-11-22T08:00:00Z"
NOW = datetime(2026, 11, 22, 9, 0, 0, tzinfo=UTC)


def workflow(spec=None, phase="Running", began=BEGAN, **metadata):
    status = {"phase": phase} | ({"startedAt": began} if began else {})
    return {"metadata": {"name": "run-x", **metadata}, "spec": spec or {}, "status": status}


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (workflow({"activeDeadlineSeconds": 0}), "terminated"),
        (workflow({"activeDeadlineSeconds": 0}, phase="Pending", began=None), "terminated"),
        (workflow({"shutdown": "Terminate"}), "shutdown Terminate"),
        (workflow({"shutdown": "Stop"}), "shutdown Stop"),
        (workflow(deletionTimestamp="2026-11-22T08:59:00Z"), "deleted"),
        (workflow({"activeDeadlineSeconds": 3600}), "deadline"),
        (workflow({"activeDeadlineSeconds": 3599}), "deadline"),
        (workflow(phase="Failed"), "has ended: Failed"),
        (workflow(phase="Error"), "has ended: Error"),
        (workflow(phase="Succeeded"), "has ended: Succeeded"),
    ],
)
def test_an_end(seen, why):
    assert why in why_ended(seen, NOW)


@pytest.mark.parametrize(
    "seen",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        workflow(),
        workflow(phase="Pending"),
        workflow(phase=""),
        workflow({"shutdown": ""}),
        workflow({"suspend": True}),
        workflow({"activeDeadlineSeconds": None}),
        workflow({"activeDeadlineSeconds": 3601}),
        workflow({"activeDeadlineSeconds": 60}, began=None),  # it has not begun
        workflow({"activeDeadlineSeconds": 60}, began="soon"),
        workflow({"activeDeadlineSeconds": 10**15}),
        workflow({"activeDeadlineSeconds": "0"}),
        workflow({"activeDeadlineSeconds": False}),
        workflow({"ttlStrategy": {"secondsAfterCompletion": 0}}),
        workflow({}, labels={"workflows.argoproj.io/phase": "Failed"}),
        # A retry takes the deadline away and leaves what it was.
        workflow({}, annotations={"terminated": "true"}),
    ],
)
def test_no_end(seen):
    assert why_ended(seen, NOW) == ""


def test_a_deadline_counts_only_after_sigterm():
    """This node's clock alone ends no job."""
    seen = workflow({"activeDeadlineSeconds": 60})
    assert why_ended(seen) == "" and "deadline" in why_ended(seen, NOW)


@pytest.mark.parametrize(
    ("spec", "by_a_person"),
    [
        ({"activeDeadlineSeconds": 0}, True),
        ({"shutdown": "Stop"}, True),
        ({"activeDeadlineSeconds": 60}, False),
        ({}, False),
    ],
)
def test_who_ended_it(spec, by_a_person):
    assert was_terminated(workflow(spec)) is by_a_person
