"""What a launcher does that finds a job: every state, for Pipelines' retry and for a person's."""

import copy
from dataclasses import replace
from unittest.mock import Mock

import pytest

from kfp_tfjob.cluster.backend import JobExistsError
from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.earlier_job import TABLE, Action, JobState, decide, job_state
from kfp_tfjob.components.launch_tfjob.engine import Launcher
from kfp_tfjob.components.launch_tfjob.launch_context import Launch
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.storage.layout import Layout
from tests.problems import problem_of
from tests.unit.cluster_objects import manifest, pod
from tests.unit.launch_parameters import DEFAULTS, OWNER, RUN_ID

WANTED = manifest(owner=OWNER)


def job(*conditions: str, **metadata) -> dict:
    found = copy.deepcopy(WANTED)
    found["metadata"] |= metadata
    found["status"] = {"conditions": [{"type": kind, "status": "True"} for kind in conditions]}
    return found


def chief(code: int) -> dict:
    return pod("chief-0", code)


GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
FOREIGN = {"labels": WANTED["metadata"]["labels"] | {"kfp-tfjob/run": "other"}}
TASK = {"labels": WANTED["metadata"]["labels"] | {"kfp-tfjob/task": "other"}}
UID = {"ownerReferences": [OWNER | {"uid": "another"}]}
HASH = {"annotations": {"kfp-tfjob/spec-hash": "0"}}


@pytest.mark.parametrize(
    ("found", "pods", "state", "automatic", "person"),
    [
        (None, [], JobState.NOTHING, Action.CREATE, Action.CREATE),
        (job(), [], JobState.RUNNING, Action.ADOPT, Action.ADOPT),
        (job("Created", "Running"), [], JobState.RUNNING, Action.ADOPT, Action.ADOPT),
        (job("Suspended"), [], JobState.RUNNING, Action.ADOPT, Action.ADOPT),
        (job("Succeeded"), [chief(0)], JobState.SUCCEEDED, Action.ADOPT, Action.ADOPT),
        (job("Failed", "Succeeded"), [chief(0)], JobState.SUCCEEDED, Action.ADOPT, Action.ADOPT),
        (job("Failed"), [chief(137)], JobState.FAILED_FOR_NOW, Action.CREATE, Action.CREATE),
        (job("Failed"), [chief(145)], JobState.FAILED_FOR_NOW, Action.CREATE, Action.CREATE),
        (job("Failed"), [chief(5)], JobState.FAILED_FOR_NOW, Action.CREATE, Action.CREATE),
        (job("Failed"), [chief(2)], JobState.FAILED_FOR_GOOD, Action.REPEAT, Action.CREATE),
        (job("Failed"), [chief(1)], JobState.FAILED_FOR_GOOD, Action.REPEAT, Action.CREATE),
        (job("Running", **GONE), [], JobState.BEING_DELETED, Action.WAIT, Action.WAIT),
        (job("Failed", **GONE), [chief(1)], JobState.BEING_DELETED, Action.WAIT, Action.WAIT),
        (job("Running", **FOREIGN), [], JobState.OTHER_OWNER, Action.REFUSE, Action.REFUSE),
        (job("Running", **TASK), [], JobState.OTHER_OWNER, Action.REFUSE, Action.REFUSE),
        (job("Running", **UID), [], JobState.OTHER_OWNER, Action.REFUSE, Action.REFUSE),
        (job("Running", **HASH), [], JobState.OTHER_SPEC, Action.REFUSE, Action.REFUSE),
        (job("Succeeded", **HASH), [chief(0)], JobState.OTHER_SPEC, Action.REFUSE, Action.REFUSE),
        (job("Running", ownerReferences=[]), [], JobState.RUNNING, Action.ADOPT, Action.ADOPT),
    ],
)
def test_every_state(found, pods, state, automatic, person):
    assert job_state(found, pods, WANTED) == state
    assert (decide(state, True), decide(state, False)) == (automatic, person)


def test_the_table_is_whole():
    assert set(TABLE) == set(JobState)


@pytest.mark.parametrize("change", [HASH, FOREIGN], ids=["other version", "other run"])
@pytest.mark.parametrize("attempts", [[1], []], ids=["of an earlier start", "made just before"])
def test_a_running_job_that_is_not_ours_is_refused_and_left_alone(attempts, change):
    claim = Claim.first(1, 0).to_bytes(RUN_ID, "the job", "its hash")
    store = Mock(numbers=Mock(return_value=attempts), read=Mock(return_value=claim))
    store.read_manifest.side_effect = ObjectNotFoundError("the output is not complete")
    backend = Mock(get=Mock(return_value=job("Running", **change)), pods=Mock(return_value=[]))
    backend.create.side_effect = JobExistsError("there is one")
    step = Step("launch_tfjob", RUN_ID, Layout.parse("s3://kfp-tfjob"), store)
    launcher = Launcher(Launch(step, JobSpec.parse(**DEFAULTS), backend, OWNER))
    problem = problem_of(launcher.train)
    assert problem.what.startswith(f"TFJob {WANTED['metadata']['name']} ")
    assert problem.received and problem.expected and problem.fix
    backend.delete.assert_not_called()


@pytest.mark.parametrize("first", [{"MLFLOW_RUN_ID": "abc"}, {}])
def test_a_retry_continues_the_mlflow_run_of_the_first_attempt(first, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "of the retry")
    claim = replace(Claim.first(1, 0), tracking=first).to_bytes(RUN_ID, "the job", "its hash")
    store = Mock(numbers=Mock(return_value=[1]), read=Mock(return_value=claim))
    store.read_manifest.side_effect = ObjectNotFoundError("the output is not complete")
    step = Step("launch_tfjob", RUN_ID, Layout.parse("s3://kfp-tfjob"), store)
    backend = Mock(get=Mock(return_value=job("Running", **HASH)), pods=Mock(return_value=[]))
    launcher = Launcher(Launch(step, JobSpec.parse(**DEFAULTS), backend, OWNER))
    assert launcher.launch.tracking == {"MLFLOW_RUN_ID": "of the retry"}
    problem_of(launcher.train)
    assert launcher.launch.tracking == first
