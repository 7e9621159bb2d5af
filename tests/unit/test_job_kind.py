"""The kind of job is a seam: each kind is built, run, read, stopped and judged."""

import dataclasses
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kfp_tfjob.checks.cluster import job_kind
from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.checks.subject import Subject, choose
from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.cluster.api_errors import (
    ApiError,
    ClusterUnavailableError,
    ForbiddenError,
    NotFoundError,
)
from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.cluster.local.backend import LocalBackend
from kfp_tfjob.cluster.pod_summary import pod_summary
from kfp_tfjob.cluster.stopping import chief_of
from kfp_tfjob.components.finish import leftover_jobs
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.run_report import explain
from kfp_tfjob.jobs import kinds
from kfp_tfjob.jobs.attempt_record import AttemptEnd, end_of
from kfp_tfjob.jobs.job_diagnosis import judge
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import is_over, is_suspended, job_condition
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from tests.problems import problem_of
from tests.unit.cluster_objects import client_of, manifest, pod
from tests.unit.launch_parameters import DEFAULTS, EVERYTHING, RUN_ID


def test_a_role_that_the_kind_lacks_is_a_problem(monkeypatch):
    monkeypatch.setattr(kinds, "DEFAULT", PYTORCHJOB)
    # PyTorch has neither parameter servers nor evaluators.
    pods = {role: EVERYTHING["pod"][role] for role in ("all", "chief")}
    assert JobSpec.parse(**EVERYTHING | {"pod": pods}).kind is PYTORCHJOB
    problem = problem_of(JobSpec.parse, **EVERYTHING | {"pod": {"ps": {"replicas": 2}}})
    assert (problem.path, problem.received, problem.suggestion) == ("pod.ps.replicas", 2, "0")
    assert "PyTorchJob" in problem.what


def test_the_record_of_an_attempt_names_the_kind():
    judgement = Judgement(Verdict.CANCELLED, "it ended")
    end = end_of(1, PYTORCHJOB, manifest(kind=PYTORCHJOB), "j-1", judgement, ())
    end = AttemptEnd.from_bytes(dataclasses.replace(end, namespace="team-a").to_bytes())
    text = explain([end])
    assert "PyTorchJob `j-1` in namespace `team-a`" in text
    assert " pytorchjob j-1" in text

    old = json.loads(end.to_bytes())
    del old["kind"]
    assert "TFJob `j-1`" in explain([AttemptEnd.from_bytes(json.dumps(old).encode())])


def exit_task(monkeypatch, jobs: Mapping[str, list | Exception]) -> tuple[ClusterReport, list]:
    """Let the exit task end the jobs of a run; `jobs` are what the cluster lists of each kind."""
    ended = []

    def listed(api: ClusterClient, path: str, **_: str) -> list:
        found = jobs.get(path.rpartition("/")[2], [])  # no pods of steps
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("kfp_tfjob.checks.subject.open_cluster", lambda *_: client_of())
    monkeypatch.setattr(leftover_jobs, "failed_on", lambda *_: ([], True))
    monkeypatch.setattr(ClusterClient, "list", listed)
    monkeypatch.setattr(KubernetesBackend, "pods", lambda *_: [])
    monkeypatch.setattr(
        KubernetesBackend, "cancel", lambda self, name, *_: ended.append((self._api.kind, name))
    )
    return leftover_jobs.end_jobs(RUN_ID), ended


@pytest.mark.parametrize("of_tfjobs", [[], NotFoundError("no CRD"), ForbiddenError("RBAC")])
def test_the_exit_task_ends_jobs_of_every_kind(monkeypatch, of_tfjobs):
    job = manifest(kind=PYTORCHJOB)
    name = job["metadata"]["name"]
    jobs = {"tfjobs": of_tfjobs, "jobsets": NotFoundError("no CRD"), "pytorchjobs": [job]}
    left, ended = exit_task(monkeypatch, jobs)
    assert ended == [(PYTORCHJOB, name)]
    assert [(end.kind, end.job) for end in left.ends] == [("PyTorchJob", name)]
    assert (left.cancelled, left.trouble) == ([name], "")


def test_the_exit_task_needs_no_kind_that_the_cluster_lacks(monkeypatch):
    job = manifest(kind=TFJOB)
    absent = {"jobsets": NotFoundError("no CRD"), "pytorchjobs": NotFoundError("no CRD")}
    left, ended = exit_task(monkeypatch, {"tfjobs": [job], **absent})
    assert ended == [(TFJOB, job["metadata"]["name"])] and not left.trouble
    nothing = {"tfjobs": ForbiddenError("RBAC"), **absent}
    assert "RBAC" in exit_task(monkeypatch, nothing)[0].trouble


def torch_pod(replica: str, code: int | None, container: str = "pytorch") -> dict:
    return pod(replica, code, container=container, kind=PYTORCHJOB)


def test_its_status_is_read_and_its_pods_are_judged():
    def ended(state: str) -> dict:
        found = {"type": PYTORCHJOB.conditions[state], "status": "True", "message": "said"}
        return manifest(kind=PYTORCHJOB) | {"status": {"conditions": [found]}}

    assert is_over(ended("failed")) and not is_over(ended("running"))
    assert job_condition(ended("running"), "running") is not None
    assert is_suspended(ended("suspended")) and not is_suspended(ended("running"))
    assert judge(ended("succeeded"), [torch_pod("chief-0", 0)]).verdict == "succeeded"
    failed = torch_pod("worker-0", 3)
    found = judge(ended("failed"), [torch_pod("chief-0", 138), failed])
    assert (found.verdict, found.code) == ("user_error", 3)
    assert found.sentence.startswith("worker-0 ")
    # The exit code of any other container says nothing.
    other = torch_pod("worker-0", 3, "tensorflow")
    assert judge(ended("failed"), [other]).verdict == "preempted_or_lost"
    running = [torch_pod("chief-0", None), failed]
    assert pod_summary(ended("running"), running).startswith("1 of 2 ")
    assert PYTORCHJOB.log_name("worker-0", "pytorch") == "worker-0"
    assert PYTORCHJOB.log_name("worker-0", "setup") == "worker-0/setup"


# The job is over with its master, which therefore waits for the worker.
PROGRAM = """
import json, os, pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}.part").write_text(json.dumps(dict(os.environ)))
(folder / f"{name}.part").rename(folder / name)
until = time.monotonic() + 300
while not (folder / "Worker").exists() and time.monotonic() < until:
    time.sleep(0.02)
"""


def test_it_runs_as_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "99")
    monkeypatch.setenv("TF_CONFIG", "of the machine")
    job = manifest(kind=PYTORCHJOB)
    for name, item in job["spec"][PYTORCHJOB.replicas_key].items():
        spec = item["template"]["spec"]
        del spec["initContainers"]
        spec["containers"][0] |= {"command": ["python3", "-c", PROGRAM, str(tmp_path), name]}
    name = job["metadata"]["name"]
    with LocalBackend(tmp_path / "jobs", tmp_path / "secrets") as backend:
        backend.create(job)
        until = time.monotonic() + 300
        while not is_over(backend.get(name)) and time.monotonic() < until:
            backend.wait_for_change(name, 1)
        status = backend.get(name)["status"]
        assert judge(backend.get(name), backend.pods(name)).verdict == "succeeded"
    assert status["conditions"][-1]["reason"] == "PyTorchJobSucceeded"
    master, worker = (json.loads((tmp_path / name).read_text()) for name in ("Master", "Worker"))
    assert (master["RANK"], worker["RANK"], worker["WORLD_SIZE"]) == ("0", "1", "2")
    assert worker["MASTER_PORT"] == master["MASTER_PORT"]
    assert json.loads(worker["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}


def test_a_jobset_is_noticed_before_it_has_a_condition():
    assert not JOBSET.is_noticed(manifest(kind=JOBSET))
    assert JOBSET.is_noticed({"status": {"replicatedJobsStatus": []}})
    assert not TFJOB.is_noticed({"status": {"replicatedJobsStatus": []}})


def test_the_jobs_of_a_jobset_say_why_pods_are_not_created():
    job = manifest(kind=JOBSET)
    name = job["metadata"]["name"]
    assert JOBSET.creators(job) == [name, f"{name}-chief-0", f"{name}-worker-0"]
    events = [{"reason": "FailedCreate", "message": "exceeded quota: q"}]
    assert waiting_reasons.not_made(events) == ["exceeded quota: q"]


def test_the_name_of_a_chiefs_pod_comes_from_the_pods_that_were_seen():
    def seen(job: str, role: str, suffix: str = "abcde", created: str = "") -> dict:
        labels = JOBSET.pod_labels(job, role, 0)
        name = f"{JOBSET.pod_name(job, role, 0)}-{suffix}"
        return {"metadata": {"name": name, "labels": labels, "creationTimestamp": created}}

    pods = [seen("k", "chief"), seen("j", "worker"), seen("j", "chief")]
    assert chief_of(JOBSET, "j", pods) == "j-chief-0-0-abcde"
    resumed = [seen("j", "chief", "fghij", "2026-01-01T10:10:00Z")]
    deleted = [seen("j", "chief", "abcde", "2026-01-01T10:00:00Z"), seen("j", "worker")]
    for order in (resumed + deleted, deleted + resumed):
        assert chief_of(JOBSET, "j", order) == "j-chief-0-0-fghij"
    assert chief_of(JOBSET, "i", pods) == ""
    assert chief_of(TFJOB, "i", []) == "i-chief-0"


@pytest.mark.parametrize("key", ["", "a-task-with-a-key-20c"])
def test_the_longest_names_of_the_pods_of_a_jobset_fit(key):
    for attempt in (1, 9999):
        name = Identity("a" * 36, attempt, task_key=key[:20]).job_name(JOBSET)
        longest = (f"{name}-evaluator-0-0-abcde", f"{name}-worker-0-999-abcde")
        assert max(map(len, longest)) <= 63
    assert Identity(RUN_ID, 1).job_name(JOBSET) == f"js-{RUN_ID}-1"


def test_the_pods_that_a_job_stops_do_not_hide_why_it_failed():
    """The Job of the workers stops worker-1 in the second in which worker-0 failed."""

    def at(second: int) -> str:
        return f"2026-01-01T00:00:{second:02d}Z"

    failed = {"type": "Failed", "status": "True", "lastTransitionTime": at(20), "message": "m"}
    job = manifest(kind=JOBSET) | {"status": {"conditions": [failed]}}
    chief, cause = pod("chief-0", kind=JOBSET), pod("worker-0", 1, at=5, kind=JOBSET)
    stopped = pod("worker-1", 143, at=6, kind=JOBSET)
    stopped["metadata"] |= {"deletionTimestamp": at(15), "deletionGracePeriodSeconds": 10}
    found = judge(job, [chief, stopped, cause])
    assert (found.verdict, found.code) == ("user_error", 1)
    # Alone, the deletion is what happened.
    found = judge(job, [chief, stopped])
    assert found.verdict == "preempted_or_lost" and "was deleted" in found.sentence


class Cluster:
    """Answers dry runs: a kind's plural to an error, or to whether its queue suspends the job."""

    namespace = "team-a"

    def __init__(self, answers: Mapping[str, Exception | bool], kind: JobKind = TFJOB) -> None:
        self.answers, self.kind = answers, kind

    def of(self, kind: JobKind) -> "Cluster":
        return Cluster(self.answers, kind)

    def jobs(self) -> str:
        return self.kind.plural

    def request(self, method: str, path: str, query: Mapping[str, str], job: dict) -> dict:
        assert (method, query) == ("POST", {"dryRun": "All"})
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        place = job["spec"] if self.kind is JOBSET else job["spec"]["runPolicy"]
        place["suspend"] = answer
        return job


AWAY = ClusterUnavailableError("no answer")
AWAY.__cause__ = ApiError(500, "", '{"message": "failed calling webhook \\"x\\""}')
ABSENT = NotFoundError("no CRD")


@pytest.mark.parametrize(
    ("tfjobs", "jobsets", "queue", "chosen"),
    [
        (False, False, "", TFJOB),
        (False, ABSENT, "", TFJOB),
        (ABSENT, False, "", JOBSET),
        (AWAY, False, "", JOBSET),
        (ForbiddenError("RBAC"), False, "", JOBSET),
        (ForbiddenError("RBAC"), ABSENT, "", TFJOB),
        (JobRefusedError("a quota"), False, "", TFJOB),
        (False, True, "gpus", JOBSET),
        (True, False, "gpus", TFJOB),
        (False, False, "gpus", TFJOB),
        (ABSENT, True, "gpus", JOBSET),
    ],
)
def test_the_cluster_decides_which_kind_auto_is(tfjobs, jobsets, queue, chosen):
    pods = {"pod": {"all": {"queue": queue}}} if queue else {}
    api = Cluster({"tfjobs": tfjobs, "jobsets": jobsets})
    assert choose(api, lambda kind: manifest(DEFAULTS | pods, kind)) is chosen


def test_a_kind_that_kueue_does_not_manage_is_a_warning():
    pods = {"pod": {"all": {"queue": "gpus"}}}
    for held, words in ((False, "add kubeflow.org/tfjob to integrations.frameworks"), (True, "")):
        api: Any = Cluster({"tfjobs": held})
        wanted = JobSpec.parse(**DEFAULTS | pods | {"train_options": {"job": "tfjob"}})
        found = only(job_kind(Subject(api, wanted)), Status.WARNING)
        assert [words in it.fix for it in found] == [True] * bool(words)


def test_a_cluster_without_any_is_told_every_way_out():
    api = Cluster({"tfjobs": ABSENT, "jobsets": AWAY})
    problem = problem_of(choose, api, lambda kind: manifest(kind=kind))
    assert "neither TFJobs nor JobSets" in problem.what
    assert all(kind.install in problem.fix for kind in (TFJOB, JOBSET))
    with pytest.raises(ClusterUnavailableError):
        choose(Cluster({"tfjobs": ClusterUnavailableError("down")}), lambda _: {})
