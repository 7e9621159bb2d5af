"""What outlives what: launchers that end before their job, runs that are ended, the exit task."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest
from kubernetes import client

from components.finish import engine as finish
from components.finish.cluster import end_jobs_on
from components.images import TOOLS
from components.launch_tfjob.verdict import judge
from tests.cluster.launches import SMALL, Ended, Launch
from tests.cluster.workloads import container, pod

pytestmark = pytest.mark.cluster

_WORKFLOWS = ("argoproj.io", "v1alpha1")


@pytest.fixture(scope="module")
def workflows(cluster) -> Iterator[None]:
    """Workflows of Argo as objects that nobody cares for; that is what Kubernetes itself knows."""
    extensions = client.ApiextensionsV1Api(cluster.api)
    names = {"plural": "workflows", "singular": "workflow", "kind": "Workflow"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": schema}
    spec = {"group": "argoproj.io", "names": names, "scope": "Namespaced", "versions": [version]}
    body = {"metadata": {"name": "workflows.argoproj.io"}, "spec": spec}
    extensions.create_custom_resource_definition(body)
    yield
    extensions.delete_custom_resource_definition("workflows.argoproj.io")


@pytest.fixture
def workflow(workflows, launch: Launch) -> str:
    """A Workflow with a pod of its own: the step this process stands for."""
    body = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    body |= {"metadata": {"name": "run-x"}, "spec": {}}
    path = (*_WORKFLOWS, launch.namespace, "workflows")

    def create() -> bool:
        try:
            launch.cluster.custom.create_namespaced_custom_object(*path, body)
        except client.ApiException:
            return False  # the API server has not seen the definition yet
        return True

    launch.wait_for(create)
    return "run-x"


def test_launcher_killed_and_started_again(launch, row):
    process = launch.start_process("time.sleep(8)", gpus=1)
    try:
        launch.wait_said()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = launch.run(launch.spec("time.sleep(8)", gpus=1))
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1


def test_launcher_terminated_leaves_its_job(launch, row):
    process = launch.start_process("time.sleep(10)", gpus=1)
    try:
        launch.wait_said()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    finally:
        process.kill()
    assert launch.phase() == "Running" and launch.gpus_held() == 1
    ended = launch.run(launch.spec("time.sleep(10)", gpus=1), retry=True)
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1


def test_launcher_gone_for_good(launch, row):
    """The dead-man's switch: without a heartbeat the chief saves, stops and frees the GPUs."""
    body = "time.sleep(0 if attempt > 1 else 90)"
    limits = {"gpus": 1, "workers": 1, "orphan_timeout_seconds": 6}
    process = launch.start_process(body, **limits)
    try:
        launch.wait_said()
        time.sleep(8)  # longer than the timeout: the heartbeat keeps the chief alive
        assert launch.phase() == "Running"
    finally:
        process.kill()
        process.wait()
    backend = launch.backend()

    def verdict() -> str:
        job = backend.get(launch.name())
        return str(judge(job, backend.pods(launch.name())).verdict) if _over(job) else ""

    launch.wait_for(verdict)
    assert verdict() == "orphaned"
    launch.wait_for(lambda: launch.gpus_held() == 0)
    ended = launch.run(launch.spec(body, **limits))
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2


def test_chief_pending_and_launcher_gone(launch, row):
    """Workers that hold GPUs wait for the chief's name only so long."""
    nowhere = {"chief": {"node_selector": {"kubernetes.io/hostname": "nowhere"}}}
    arguments = {"workers": 2, "gpus": 1, "pod": nowhere, "start_timeout_seconds": 5}
    process = launch.start_process("time.sleep(90)", **arguments)
    try:
        launch.wait_for(lambda: launch.gpus_held() == 2)
    finally:
        process.kill()
        process.wait()
    launch.wait_for(lambda: launch.gpus_held() == 0)
    # Whoever starts it again learns that the infrastructure was at fault, and waits for a node.
    limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 8}
    launch.run(launch.spec("time.sleep(90)", **arguments | limits))
    row("partly_placed", 2, jobs=0)


def test_workflow_object_deleted(launch, workflow, row, monkeypatch):
    backend = launch.backend()
    owner = _owner(launch, monkeypatch, workflow, backend)
    launch.start(launch.spec("time.sleep(90)", gpus=1), backend, owner=owner)
    launch.wait_said()
    path = (*_WORKFLOWS, launch.namespace, "workflows", workflow)
    launch.cluster.custom.delete_namespaced_custom_object(*path)
    launch.join()
    row("cancelled", 2, jobs=0)


def test_exit_task_after_terminate(launch, workflow, row, monkeypatch):
    """The chief ignores SIGTERM, its grace is long, and its sidecar is at work."""
    body = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    (output / f'part-{number % 40}.bin').write_bytes(os.urandom(1_000_000))\n"
        "    time.sleep(0.2)\n"
    )
    backend = launch.backend()
    owner = _owner(launch, monkeypatch, workflow, backend)
    process = launch.start_process(body, gpus=1, pod={"all": {"grace_seconds": 600}})
    try:
        launch.wait_said()
    finally:
        process.kill()
        process.wait()
    assert owner["name"] == workflow
    path = (*_WORKFLOWS, launch.namespace, "workflows", workflow)
    stop = {"spec": {"activeDeadlineSeconds": 0}}
    launch.cluster.custom.patch_namespaced_custom_object(*path, stop)

    began = time.monotonic()
    left = end_jobs_on(backend, launch.step.run_id)
    launch.wait_for(lambda: launch.gpus_held() == 0)
    seconds = time.monotonic() - began
    assert seconds <= 90, seconds
    assert left.terminated is True and list(left.cancelled) == [launch.name()]
    markdown = finish.run(launch.step, "test", left).markdown
    assert "cancelled" in markdown and "a person terminated the run" in markdown
    assert "hello from chief-0" in markdown and f"describe tfjob {launch.name()}" in markdown
    failure = json.loads(launch.step.store.read(launch.step.run.failure("json")))
    launch.ended = Ended(failure["verdict"], failure["code"])
    row("cancelled", 143, jobs=0)


def test_why_it_failed(launch):
    """What a person reads when the exit task comes to a job that failed."""
    launch.run(
        launch.spec("print('no column y'); sys.exit(3 if me == 'worker-0' else 0)", workers=1)
    )
    left = end_jobs_on(launch.backend(), launch.step.run_id)
    markdown = finish.explain(left.ends)
    assert "| worker-0 | Failed | node-1 | tensorflow | terminated | 3 |" in markdown
    assert "no column y" in markdown and "| Failed | True |" in markdown
    assert f"kubectl -n {launch.namespace} logs {launch.name()}-worker-0 -c tensorflow" in markdown
    assert left.cancelled == () and launch.jobs() == [launch.name()]


def _owner(launch: Launch, monkeypatch, workflow: str, backend) -> dict:
    """Make the pod of this step, owned by the Workflow, and return what a job's owner would be."""
    path = (*_WORKFLOWS, launch.namespace, "workflows", workflow)
    uid = launch.cluster.custom.get_namespaced_custom_object(*path)["metadata"]["uid"]
    reference = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    reference |= {"name": workflow, "uid": uid, "controller": True, "blockOwnerDeletion": True}
    step = {"name": "step", "image": "none", "command": ["true"]}
    spec = {"containers": [step], "nodeSelector": {"kubernetes.io/hostname": "nowhere"}}
    metadata = {"name": "step", "ownerReferences": [reference]}
    launch.cluster.core.create_namespaced_pod(
        launch.namespace, {"metadata": metadata, "spec": spec}
    )
    monkeypatch.setenv("KFP_POD_NAME", "step")
    found = backend.owner()
    assert found["uid"] == uid and found["controller"] is found["blockOwnerDeletion"] is False
    return found


def _over(job: dict) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Failed" and item["status"] == "True" for item in conditions)


STEP = """
import json
from components.launch_tfjob import engine
from components.preflight import cluster
from components.launch_tfjob.spec import JobSpec
from components.step import step
values = json.loads({values!r})
spec = JobSpec.parse(**values)
found = cluster.check(cluster.open_cluster(10), spec, {run_id!r})
assert not found.problems, found.problems
where = ({run_id!r}, values["output_uri"], values["storage_endpoint"], values["storage_region"])
with step("launch_tfjob", *where) as context:
    launched = engine.run(context, values, "/tmp/curves.html", "/tmp/job.yaml", "/tmp/ui.json")
    print("launched", launched.job_name, launched.attempts, sorted(launched.gpu_hours), flush=True)
"""


def test_launcher_as_a_pod_that_is_drained(launch, workflow, row):
    """As on a cluster: the pod's own token, namespace and Workflow; the next pod takes over."""
    path = (*_WORKFLOWS, launch.namespace, "workflows", workflow)
    uid = launch.cluster.custom.get_namespaced_custom_object(*path)["metadata"]["uid"]
    spec = launch.spec("time.sleep(15)", gpus=1)
    options = spec.options.model_dump(mode="json", exclude_none=True)
    values = launch.parameters({"all": SMALL}, 0, 1, options)
    program = STEP.format(values=json.dumps(values), run_id=launch.step.run_id)

    def start(retry: str) -> None:
        main = container(program, image=TOOLS)
        main["resources"]["limits"]["memory"] = "1Gi"
        main["env"] = [
            {"name": "KFP_POD_NAME", "value": "step"},
            {"name": "KFP_RETRY_INDEX", "value": retry},
            {"name": "STORAGE_SECRET_DIR", "value": "/etc/kfp-tfjob/storage"},
        ]
        mount = {"name": "storage", "mountPath": "/etc/kfp-tfjob/storage"}
        main["volumeMounts"] = [mount]
        secret = {"name": "storage", "secret": {"secretName": "objstore-cred"}}
        body = pod("step", main, serviceAccountName="runner", volumes=[secret])
        reference = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
        body["metadata"]["ownerReferences"] = [reference | {"name": workflow, "uid": uid}]
        launch.cluster.core.create_namespaced_pod(launch.namespace, body)

    def ended() -> str:
        found = launch.cluster.core.read_namespaced_pod("step", launch.namespace)
        return found.status.phase if found.status.phase in ("Succeeded", "Failed") else ""

    def said() -> str:
        return launch.cluster.core.read_namespaced_pod_log("step", launch.namespace)

    start("0")
    launch.wait_for(lambda: launch.said("hello") or ended())
    owners = launch.cluster.tfjob(launch.namespace, launch.name())["metadata"]["ownerReferences"]
    assert [(item["kind"], item["uid"]) for item in owners] == [("Workflow", uid)]
    launch.cluster.core.delete_namespaced_pod("step", launch.namespace, grace_period_seconds=1)
    launch.wait_for(lambda: "step" not in _pods(launch))
    assert launch.phase() == "Running"
    start("0")
    launch.wait_for(ended)
    assert ended() == "Succeeded", said()
    assert f"launched {launch.name()} 1 ['gpu_hours_lost'" in said()
    launch.ended = Ended("succeeded", 0)
    row("succeeded", 0, jobs=1)


def _pods(launch: Launch) -> list[str]:
    pods = launch.cluster.core.list_namespaced_pod(launch.namespace).items
    return [item.metadata.name for item in pods]
