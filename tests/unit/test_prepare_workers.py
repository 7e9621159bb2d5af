"""The Job of the workers of prepare_data: its manifest, its Secret, its limits and its verdicts.

Write the golden file again, and read the difference before it is committed:

    WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/unit/test_prepare_workers.py
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kfp_tfjob.components.launch_tfjob.render import to_yaml
from kfp_tfjob.components.preflight.step_jobs import asked_for
from kfp_tfjob.components.prepare_data.executors import worker, worker_job
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.cluster_workers import WorkerJobRun, _WorkerLimits
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.prepare_data.executors.worker_job import WorkerJob
from kfp_tfjob.components.prepare_data.executors.workers import workers_in
from kfp_tfjob.jobs.judge import judge
from kfp_tfjob.jobs.status import replica_of, replicas
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.storage.errors import ConfigurationError
from tests.unit.test_step_job import OWNER, POD, RUN_ID

INPUTS = {"scheduler": "tls://10.0.0.7:8786", "certificate": "prepare-worker-0a1b2c"}


def job_of(pod: dict[str, Any] = POD, workers: int = 7) -> WorkerJob:
    found = worker_job.worker_job(parse(PodOptions, "pod", pod), workers, " objstore-cred ")
    assert found
    return found


def test_golden(repository: Path, monkeypatch) -> None:
    monkeypatch.setattr(worker_job, "code_version", lambda: "0.3.0, code 0a1b2c3d4e5f, Python 3.11")
    text = to_yaml(job_of().manifest(RUN_ID, 2, INPUTS, "a", OWNER))
    path = repository / "tests/golden/job-prepare-workers.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_secret_goes_with_its_job() -> None:
    manifest = job_of().manifest(RUN_ID, 1, INPUTS)
    there = manifest | {"metadata": manifest["metadata"] | {"uid": "j"}}
    made = Certificate.new()
    secret = worker_job.secret_of(there, INPUTS, made)
    assert secret["metadata"]["name"] == INPUTS["certificate"]
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "Job",
        manifest["metadata"]["name"],
        "j",
    )
    assert secret["stringData"] == {"tls.crt": made.certificate, "tls.key": made.key}
    assert made.key not in repr(made)


@pytest.mark.parametrize(("cpu", "processes"), [("4", 4), ("500m", 1), ("2.5", 2), ("1500m", 1)])
def test_a_worker_has_a_process_for_each_whole_core(cpu: str, processes: int) -> None:
    job = job_of({"prepare": {"cpu": cpu}}, 3)
    (one,) = replicas(job.manifest(RUN_ID, 1, INPUTS))
    variables = {item["name"]: item.get("value") for item in one.pod["containers"][0]["env"]}
    assert (one.count, variables[worker.PROCESSES]) == (3, str(processes))


def test_what_a_run_asks_for() -> None:
    pod = parse(PodOptions, "pod", {"prepare": {}, "evaluate": {}})
    names = [(job.asked_by, job.pods) for job in asked_for(pod, "s", 3)]
    assert names == [("data_options.workers", 3), ("pod.evaluate", 1)]
    assert [job.asked_by for job in asked_for(pod, "s")] == ["pod.prepare", "pod.evaluate"]
    none = parse(PodOptions, "pod", {})
    assert [job.settings.cpu for job in asked_for(none, "s", 3)] == ["4"]
    assert (workers_in({"workers": 3}), workers_in({"worker": 3}), workers_in({})) == (3, 0, 0)


def test_workers_do_not_change_the_name_of_a_dataset() -> None:
    alone, several = DataOptions(), DataOptions(workers=7)
    assert alone.dataset_digest("s", "y") == several.dataset_digest("s", "y")


def pod_of(job: WorkerJob, index: int, phase: str = "Pending", **status: Any) -> dict[str, Any]:
    (one,) = replicas(job.manifest(RUN_ID, 1, INPUTS))
    labels = one.template["metadata"]["labels"]
    labels = labels | {"batch.kubernetes.io/job-completion-index": str(index)}
    metadata = one.template["metadata"] | {"name": f"w-{index}-x", "uid": "p", "labels": labels}
    return {"metadata": metadata, "spec": dict(one.pod), "status": {"phase": phase, **status}}


def test_one_worker_is_enough_and_none_has_a_limit() -> None:
    now, connected = 0.0, 0
    job = job_of(POD | {"prepare": {"cpu": 8, "pending_timeout_seconds": 60}})
    limits = _WorkerLimits(job, lambda: now, connected=lambda: connected)
    manifest = job.manifest(RUN_ID, 1, INPUTS)
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu"}
    waits = [pod_of(job, index, conditions=[said]) for index in range(7)]
    assert limits.look(manifest, waits, []) is None and limits.next_limit == 60
    now, connected = 61.0, 2
    assert limits.look(manifest, waits, []) is None
    connected = 0
    assert limits.look(manifest, waits, []) is None  # the limit begins again
    now = 122.0
    lost = pod_of(job, 0, "Failed", reason="NodeLost")
    found = limits.look(manifest, [lost, *waits], [])
    assert found and found.verdict == "unschedulable" and "Insufficient cpu" in found.sentence
    assert found.remedy == "lower pod.prepare.cpu (8 now)"


def test_a_quota_that_has_room_for_one_worker_is_enough() -> None:
    job = job_of()
    message = (
        'pods "x" is forbidden: exceeded quota: team, requested: requests.memory=32Gi,'
        " used: requests.memory=64Gi, limited: requests.memory={}"
    )
    limits = _WorkerLimits(job, lambda: 0.0, connected=lambda: 0)
    manifest = job.manifest(RUN_ID, 1, INPUTS)
    event = {"reason": "FailedCreate", "message": message.format("64Gi")}
    assert limits.look(manifest, [], [event]) is None
    never = limits.look(manifest, [], [event | {"message": message.format("20Gi")}])
    assert never and "quota team allows 20 GiB" in str(never)


def failed(job: WorkerJob, reason: str) -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": reason}
    condition["lastTransitionTime"] = "2026-01-02T03:04:07Z"
    return job.manifest(RUN_ID, 1, INPUTS) | {"status": {"conditions": [condition]}}


def test_a_lost_worker_is_named() -> None:
    job = job_of()
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-02T03:04:05Z"}
    pod = pod_of(
        job, 4, "Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}]
    )
    assert replica_of(pod) == "prepare-worker-4"
    there = failed(job, "BackoffLimitExceeded")
    found = _WorkerLimits(job).explained(judge(there, [pod]), there)
    assert found.sentence == "prepare-worker-4 ran out of memory: it may use 32Gi"
    assert found.remedy == "raise pod.prepare.memory (32Gi now)"


def test_other_code_is_refused_with_both_versions(monkeypatch) -> None:
    worker._check_version(code_version())
    with pytest.raises(ConfigurationError) as caught:
        worker._check_version("0.1.0, code 0")
    (problem,) = caught.value.problems
    assert code_version() in problem.received and "0.1.0, code 0" in problem.expected
    assert caught.value.code == 2  # with which Kubernetes ends the whole Job


def test_the_fields_are_those_that_kubernetes_knows() -> None:
    from kubernetes import client

    def unknown(value: Any, model: str, where: str = "") -> list[str]:
        """Return the fields that the models of the client do not have."""
        if model.startswith("list["):
            return [bad for item in value for bad in unknown(item, model[5:-1], where)]
        if not model.startswith("V1"):
            return []
        kind = getattr(client, model)
        names = {name: field for field, name in kind.attribute_map.items()}
        bad = [f"{where}.{key}" for key in value if key not in names]
        for key, item in value.items():
            if key in names:
                bad += unknown(item, kind.openapi_types[names[key]], f"{where}.{key}")
        return bad

    assert unknown(job_of().manifest(RUN_ID, 1, INPUTS, "a", OWNER), "V1Job") == []


def test_the_rights_are_named() -> None:
    step = SimpleNamespace(run_id="r", task_key="")
    backend: Any = None
    run = WorkerJobRun(step, job_of(), INPUTS, backend)
    problem = run._no_right(ConfigurationError("secrets is forbidden")).problems[0]
    assert problem.path == "data_options.workers" and "--with workers" in problem.fix
