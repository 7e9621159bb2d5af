"""The Job of a step: its manifest, its limits and verdicts, and what its pod tells.

Write the golden file again, and read the difference before it is committed:

    WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/test_step_job.py
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from kfp_tfjob.components import step_job, step_job_pod
from kfp_tfjob.components.launch_tfjob.render import to_yaml
from kfp_tfjob.components.preflight.step_jobs import asked_for, too_large
from kfp_tfjob.components.step import Failure
from kfp_tfjob.components.step_job import StepJob
from kfp_tfjob.components.step_job_limits import StepJobLimits
from kfp_tfjob.components.step_job_pod import told, work
from kfp_tfjob.jobs.judge import judge
from kfp_tfjob.jobs.status import decides, is_over, replica_of, replicas
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem

RUN_ID = "2f6f4d1e-0c7b-4d9c-8f5e-1a2b3c4d5e6f"
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "u"}
POD = {
    "all": {
        "cpu": "64",
        "memory": "512Gi",
        "node_selector": {"gpu": "h100"},
        "env": {"PROXY": "http://proxy:1", "TOKEN": {"secret": "hub", "key": "token"}},
        "labels": {"team": "vision"},
        "image_pull_secret": "registry",
    },
    "prepare": {
        "cpu": 8,
        "memory": "32Gi",
        "ephemeral_storage": "500Gi",
        "tolerations": [{"key": "disk", "operator": "Exists"}],
        "node_selector": {"disk": "large"},
        "env": {"PROXY": "http://proxy:2"},
    },
}
PLACES = {
    "run_id": RUN_ID,
    "output_uri": "s3://bucket/p",
    "storage_endpoint": "",
    "storage_region": "",
    "task_key": "",
}


def job_of(pod: dict[str, Any] = POD, name: str = "prepare") -> StepJob:
    found = step_job.of_options(name, parse(PodOptions, "pod", pod), "objstore-cred")
    assert found
    return found


def test_golden(repository: Path) -> None:
    inputs = PLACES | {"data_options": {"delimiter": "$"}}
    text = to_yaml(job_of().manifest(RUN_ID, 2, inputs, "a", OWNER))
    path = repository / "tests/golden/job-prepare.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_only_a_run_that_asks_has_jobs(monkeypatch) -> None:
    assert asked_for(parse(PodOptions, "pod", {"all": {"cpu": 1}})) == []
    both = asked_for(parse(PodOptions, "pod", {"prepare": {}, "evaluate": {}}))
    assert [job.step for job in both] == ["prepare_data", "evaluate"]
    assert {job.settings.memory for job in both} == {"16Gi"}
    assert step_job.wanted("evaluate", {"prepare": {}}, "s") is None
    monkeypatch.setenv("KFP_TFJOB_BACKEND", "local")
    assert step_job.wanted("prepare", {"prepare": {}}, "s") is None


def test_evaluate_may_have_gpus_and_publish_judges_in_such_a_pod(monkeypatch) -> None:
    monkeypatch.setattr(step_job.images, "TRAIN", "r.test/trainer-gpu:1")
    pod = {"evaluate": {"gpus": 1, "gpu_resource": "nvidia.com/mig-1g.5gb"}}
    judged = job_of(pod, "evaluate")
    again = step_job.wanted("evaluate", pod, "objstore-cred", "publish")
    assert again is not None and again.settings == judged.settings
    for job, step in ((judged, "evaluate"), (again, "publish")):
        manifest = job.manifest(RUN_ID, 1, {"dataset_uri": "d"})
        assert manifest["metadata"]["name"].startswith(f"{step}-")
        (main,) = manifest["spec"]["template"]["spec"]["containers"]
        assert main["command"][-1] == f"kfp_tfjob.components.{step}.in_pod"
        assert main["image"] == "r.test/trainer-gpu:1"
        assert main["resources"]["limits"]["nvidia.com/mig-1g.5gb"] == "1"
        assert {"name": "EXPECTED_GPUS", "value": "1"} in main["env"]
    plain = job_of({"evaluate": {}}, "evaluate").manifest(RUN_ID, 1, {})
    (main,) = plain["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in main["resources"]["limits"] and main["image"].count("trainer:")


def test_a_key_that_such_a_pod_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        step_job.wanted("prepare", {"prepare": {"gpus": 1, "volumes": []}}, "s")
    assert {problem.path for problem in caught.value.problems} == {
        "pod.prepare.gpus",
        "pod.prepare.volumes",
    }


def status(phase: str, **more: Any) -> dict[str, Any]:
    """Return the pod of the Job."""
    manifest = job_of().manifest(RUN_ID, 1, {})
    (one,) = replicas(manifest)
    metadata = one.template["metadata"] | {"name": "prepare-x-1-abcde", "uid": "p"}
    return {"metadata": metadata, "spec": dict(one.pod), "status": {"phase": phase, **more}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    state = {"exitCode": code, "reason": reason, "finishedAt": "2026-01-02T03:04:05Z"}
    container = {"name": "main", "state": {"terminated": state | {"message": message}}}
    return status("Failed", containerStatuses=[container])


def failed(reason: str = "BackoffLimitExceeded") -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": reason}
    return job_of().manifest(RUN_ID, 1, {}) | {
        "status": {"conditions": [condition | {"lastTransitionTime": "2026-01-02T03:04:07Z"}]}
    }


def test_the_readers_of_jobs_know_it() -> None:
    pod = status("Running")
    assert (replica_of(pod), decides(pod)) == ("prepare-0", True)
    assert is_over(failed()) and not is_over(job_of().manifest(RUN_ID, 1, {}))


@pytest.mark.parametrize(
    ("pod", "reason", "verdict", "fix"),
    [
        (ended(137, "OOMKilled"), "", "out_of_memory", "raise pod.prepare.memory (32Gi now)"),
        (
            status(
                "Failed",
                reason="Evicted",
                message="Pod ephemeral local storage usage exceeds the total limit of containers",
            ),
            "",
            "out_of_disk",
            "raise pod.prepare.ephemeral_storage (500Gi now)",
        ),
        (
            status("Failed", reason="DeadlineExceeded"),
            "",
            "deadline",
            "raise pod.prepare.deadline_seconds (86400 s now)",
        ),
        (
            status("Running"),
            "DeadlineExceeded",
            "deadline",
            "raise pod.prepare.deadline_seconds (86400 s now)",
        ),
        (status("Failed", reason="NodeLost"), "", "preempted_or_lost", "start the run again"),
    ],
)
def test_verdicts_name_the_key_of_the_pod(pod, reason, verdict, fix) -> None:
    job = failed(reason or "BackoffLimitExceeded")
    found = StepJobLimits(job_of()).explained(judge(job, [pod]), job)
    assert (found.verdict, found.remedy) == (verdict, fix)


def waiting(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return status("Pending", conditions=[condition])


def test_what_waits_has_a_limit_and_a_remedy() -> None:
    now = 0.0
    job = job_of(POD | {"prepare": {"cpu": 8, "pending_timeout_seconds": 60}})
    limits = StepJobLimits(job, lambda: now)
    manifest = job.manifest(RUN_ID, 1, {})
    pod = waiting("0/3 nodes are available: 2 Insufficient cpu, 1 node(s) had untolerated taint")
    assert limits.look(manifest, [pod], []) is None and limits.next_limit == 60
    now = 61
    found = limits.look(manifest, [pod], [])
    assert found and found.verdict == "unschedulable"
    assert "0/3 nodes are available" in found.sentence
    assert found.remedy == (
        "lower pod.prepare.cpu (8 now), or tolerate the taints of more nodes with"
        " pod.prepare.tolerations"
    )


def test_a_quota_that_can_never_admit_the_pod_ends_the_wait() -> None:
    job = job_of()
    said = (
        'pods "x" is forbidden: exceeded quota: team, requested: requests.memory=32Gi,'
        " used: requests.memory=0, limited: requests.memory=20Gi"
    )
    event = {"reason": "FailedCreate", "message": said}
    found = StepJobLimits(job).look(job.manifest(RUN_ID, 1, {}), [], [event])
    assert found and found.verdict == "unschedulable" and "quota team allows 20 GiB" in str(found)
    assert "lower pod.prepare.memory (32Gi now), or have the ResourceQuota team" in found.remedy


@pytest.mark.parametrize(
    ("reason", "message", "seconds", "verdict", "fix"),
    [
        ("ImagePullBackOff", "no such image", 301, "image_pull", "pod.prepare.image_pull_secret"),
        (
            "CreateContainerConfigError",
            'secret "hub" not found',
            6,
            "user_error",
            "create Secret hub in the namespace of the run, or correct pod.prepare.env.TOKEN",
        ),
    ],
)
def test_a_container_that_cannot_start(reason, message, seconds, verdict, fix) -> None:
    now, job = 0.0, job_of()
    limits = StepJobLimits(job, lambda: now)
    state = {"waiting": {"reason": reason, "message": message}}
    pod = status("Pending", containerStatuses=[{"name": "main", "state": state}])
    assert limits.look(job.manifest(RUN_ID, 1, {}), [pod], []) is None
    now = seconds
    found = limits.look(job.manifest(RUN_ID, 1, {}), [pod], [])
    assert found and found.verdict == verdict and fix in found.remedy


def test_nodes_that_do_not_fit() -> None:
    def node(memory: str, **labels: str) -> dict[str, Any]:
        allocatable = {"cpu": "64", "memory": memory, "ephemeral-storage": "1Ti"}
        return {"metadata": {"labels": labels}, "status": {"allocatable": allocatable}}

    job = job_of()
    manifest = job.manifest(RUN_ID, 1, {})
    assert list(too_large(job, manifest, [node("64Gi", disk="large")])) == []
    (text,) = too_large(job, manifest, [node("64Gi")])
    assert "no current node fits the node selector and tolerations of pod.prepare" in text
    (text,) = too_large(job, manifest, [node("16Gi", disk="large")])
    assert "32 GiB memory requested, and the largest node that fits can allocate 16 GiB" in text


def test_a_failure_goes_from_the_pod_to_the_step(monkeypatch, tmp_path, capsys) -> None:
    def tell(message: str, times: int = 1) -> Failure | None:
        def fails(_step: Any, inputs: Any) -> None:
            assert inputs == {"data_uri": "s3://bucket/d"}
            raise DataError(*[Problem(message, fix="correct it")] * times)

        assert work("prepare_data", fails) == 3
        lines = capsys.readouterr().out.splitlines()
        return told((tmp_path / "log").read_text(), lines)

    monkeypatch.setenv(step_job.INPUTS, json.dumps(PLACES | {"data_uri": "s3://bucket/d"}))
    (tmp_path / "log").touch()
    monkeypatch.setattr(step_job_pod, "_TERMINATION_LOG", tmp_path / "log")
    monkeypatch.setattr(step_job_pod.signal, "signal", lambda *_: None)
    short = tell("row 3 is wrong")
    assert short == Failure("prepare_data", 3, "user_error", "row 3 is wrong. Fix: correct it.")
    long = tell("é" * 300, 20)
    assert (tmp_path / "log").stat().st_size <= 4000
    assert long and long.message.count("é") == 6000
    assert told("the program's own words", []) is None
    assert told('{"step": 1}', []) is None


def test_a_result_is_that_of_the_same_job() -> None:
    from kfp_tfjob.components.evaluate.in_pod import _result
    from kfp_tfjob.components.step import Step
    from kfp_tfjob.storage.errors import StepError
    from kfp_tfjob.storage.layout import Layout

    class Objects:
        def read(self, address: Any) -> bytes:
            shown = {"job_uid": "a", "blessed": True, "metrics": {"x": 1.0}}
            shown |= {"confusion": [["n"], [[1]]], "roc": None}
            return b"<html>" if address.name == "report.html" else json.dumps(shown).encode()

    objects: Any = Objects()
    step = Step("evaluate", RUN_ID, Layout.parse("s3://bucket/p"), objects)
    done = _result(step, "a")
    assert (done.blessed, done.html, done.confusion, done.roc) == (
        True,
        "<html>",
        (["n"], [[1]]),
        None,
    )
    with pytest.raises(StepError, match="its result is not in the store"):
        _result(step, "b")


def test_the_pods_of_a_job_are_found_by_its_labels_alone() -> None:
    from kubernetes.client import Configuration

    from kfp_tfjob.cluster.client import ClusterClient, connect
    from kfp_tfjob.cluster.stopping import orders

    api = ClusterClient(connect(Configuration(host="http://localhost")), "team-a", kind=STEP_JOB)
    pods, job = orders(api, "prepare-x-1", "x", 60)
    assert pods.query == {
        "labelSelector": "kfp-tfjob/run=x,batch.kubernetes.io/job-name=prepare-x-1",
        "gracePeriodSeconds": "10",
    }
    assert job.path == "/apis/batch/v1/namespaces/team-a/jobs/prepare-x-1"


def test_secrets_in_the_variables_of_its_pod_are_hidden(monkeypatch) -> None:
    from kfp_tfjob.components.step_job_run import in_own_pod
    from kfp_tfjob.jobs import masking

    monkeypatch.setattr(masking, "_hidden", set())
    pod = {"all": {"env": {"API_TOKEN": "t0p-s3cret"}}, "prepare": {}}
    step = SimpleNamespace(name="prepare_data", run_id="r", task_key="")
    assert in_own_pod(step, "prepare", pod, "objstore-cred", "s3://b/o", "", "")
    assert masking.Mask()("a line with t0p-s3cret") == "a line with ******"


class _Api(BaseHTTPRequestHandler):
    """An API server with three Jobs, which refuses to delete the first."""

    deleted: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        over = {"conditions": [{"type": "Complete", "status": "True"}]}
        items = [{"metadata": {"name": name}, "status": {}} for name in ("a-1", "b-1")]
        items.append({"metadata": {"name": "c-1"}, "status": over})
        self._answer(200, {"items": items if "/jobs" in self.path else []})

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        refused = "/jobs/a-1" in self.path
        if "/jobs/" in self.path and not refused:
            self.deleted.append(self.path.partition("/jobs/")[2].partition("?")[0])
        self._answer(403 if refused else 200, {})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_the_exit_task_ends_the_other_jobs_if_one_cannot_be_ended(caplog) -> None:
    from kubernetes.client import Configuration

    from kfp_tfjob.cluster.client import ClusterClient, connect
    from kfp_tfjob.components.finish.cluster import _end_step_jobs

    _Api.deleted.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        api = ClusterClient(connect(Configuration(host=address)), "team-a", kind=STEP_JOB)
        assert _end_step_jobs(api, "r") == ["a-1", "b-1"]
        server.shutdown()
    assert _Api.deleted == ["b-1", "c-1"]
    assert "Job a-1 is not ended" in caplog.text
