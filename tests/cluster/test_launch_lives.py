"""What outlives what: launchers that end before their job, runs that are ended, the exit task."""

from __future__ import annotations

import json
import signal
import time

import pytest

from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish import page
from kfp_tfjob.components.finish.leftover_jobs import end_jobs_on
from kfp_tfjob.jobs.job_end import judge
from kfp_tfjob.options.images import TOOLS
from tests.cluster.launches import SMALL, UNTIL_GO, Ended, Launch, on_both_kinds
from tests.cluster.workflows import Workflow
from tests.cluster.workloads import container, pod

pytestmark = pytest.mark.cluster


@pytest.fixture
def workflow(launch: Launch) -> Workflow:
    """The run that the step of a test belongs to."""
    return Workflow(launch.cluster, launch.namespace).create()


@on_both_kinds
def test_launcher_killed_and_started_again(launch, row):
    process = launch.start_process(UNTIL_GO, gpus=1)
    try:
        launch.wait_said()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.go()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1


def test_launcher_terminated_leaves_its_job(launch, row):
    process = launch.start_process(UNTIL_GO, gpus=1)
    try:
        launch.wait_said()
        process.send_signal(signal.SIGTERM)
        assert process.wait(240) == -signal.SIGTERM
    finally:
        process.kill()
    assert launch.phase() == "Running" and launch.gpus_held() == 1
    launch.start(launch.spec(UNTIL_GO, gpus=1), retry=True)
    launch.go()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1


@on_both_kinds
def test_launcher_gone_for_good(launch, row):
    """The dead-man's switch: without a heartbeat the chief saves, stops and frees the GPUs."""
    body = "time.sleep(0 if attempt > 1 else 600)"
    limits = {"gpus": 1, "workers": 1, "orphan_timeout_seconds": 12}
    process = launch.start_process(body, **limits)
    try:
        launch.wait_said()
        time.sleep(14)  # longer than the timeout: the heartbeat keeps the chief alive
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
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2


@on_both_kinds
def test_chief_pending_and_launcher_gone(launch, row):
    """Workers that hold GPUs wait for the chief's name only so long."""
    nowhere = {"chief": {"node_selector": {"kubernetes.io/hostname": "nowhere"}}}
    arguments = {"workers": 2, "gpus": 1, "pod": nowhere, "start_timeout_seconds": 5}
    process = launch.start_process("time.sleep(600)", **arguments)
    try:
        launch.wait_for(lambda: launch.gpus_held() == 2)
    finally:
        process.kill()
        process.wait()
    launch.wait_for(lambda: launch.gpus_held() == 0)
    # Who starts it again learns that the infrastructure was at fault, and waits for a node.
    limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 8}
    ended = launch.run(launch.spec("time.sleep(600)", **arguments | limits))
    # Which limit ends the last attempt depends on how soon its workers get their nodes.
    assert ended.verdict in ("partly_placed", "unschedulable")
    row(launch, ended.verdict, 2, jobs=0)


@on_both_kinds
def test_workflow_object_deleted(launch, workflow, row, monkeypatch):
    backend = launch.backend()
    owner = _owner(launch, monkeypatch, workflow, backend)
    launch.start(launch.spec("time.sleep(600)", gpus=1), backend, owner=owner)
    launch.wait_said()
    workflow.delete()
    launch.join()
    row(launch, "cancelled", 2, jobs=0)


@on_both_kinds
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
    assert owner["name"] == workflow.name
    workflow.terminate()

    began = time.monotonic()
    left = end_jobs_on(backend, launch.step.run_id)
    launch.wait_for(lambda: launch.gpus_held() == 0)
    seconds = time.monotonic() - began
    assert seconds <= 300, seconds  # the grace of the chief is twice as long
    assert left.terminated is True and list(left.cancelled) == [launch.name()]
    markdown = finish.run(launch.step, "test", left).markdown
    assert "cancelled" in markdown
    assert (
        "hello from chief-0" in markdown
        and f"describe {launch.kind.name.lower()} {launch.name()}" in markdown
    )
    failure = json.loads(launch.step.store.read(launch.step.run.failure("json")))
    launch.ended = Ended(failure["verdict"], failure["code"])
    row(launch, "cancelled", 143, jobs=0)


def test_why_it_failed(launch):
    """What a person reads when the exit task comes to a job that failed."""
    # A chief that succeeds at once may take the pod of the worker with it.
    body = "time.sleep(600) if me == 'chief-0' else print('no column y'); sys.exit(3)"
    launch.run(launch.spec(body, workers=1))
    left = end_jobs_on(launch.backend(), launch.step.run_id)
    markdown = page.explain(left.ends)
    node = launch.node_of("worker-0")
    assert f"| `worker-0` | Failed | `{node}` | `tensorflow` | terminated | 3 |" in markdown
    pod = launch.pod("worker-0")
    assert f"kubectl -n {launch.namespace} logs {pod} -c tensorflow" in markdown
    assert left.cancelled == () and launch.jobs() == [launch.name()]


def _owner(launch: Launch, monkeypatch, workflow: Workflow, backend) -> dict:
    """Make this process the step of a Workflow, and return what a job's owner would be."""
    reference = launch.be_step_of(workflow, monkeypatch)
    found = backend.owner()
    assert found["uid"] == reference["uid"]
    assert found["controller"] is found["blockOwnerDeletion"] is False
    return found


def _over(job: dict) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Failed" and item["status"] == "True" for item in conditions)


STEP = """
import json
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.subject import Subject, open_cluster
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.components.step import step
values = json.loads({values!r})
spec = JobSpec.parse(**values)
found = check(Subject(open_cluster(10, spec.kind), spec, run_id={run_id!r}), At.RUN)
assert "problem" not in [it.status for it in found], found
where = ({run_id!r}, values["output_uri"], values["storage_endpoint"], values["storage_region"])
with step("launch_tfjob", *where) as context:
    launched = engine.run(context, values, "/tmp/curves.html", "/tmp/job.html")
    print("launched", launched.job_name, launched.attempts, sorted(launched.gpu_hours), flush=True)
"""


def test_launcher_as_a_pod_that_is_drained(launch, workflow, row):
    """As on a cluster: the pod's own token, namespace and Workflow; the next pod takes over."""
    spec = launch.spec(UNTIL_GO, gpus=1)
    options = spec.options.model_dump(mode="json", exclude_none=True)
    values = launch.parameters({"all": SMALL}, 0, 1, options)
    program = STEP.format(values=json.dumps(values), run_id=launch.step.run_id)
    _start_step(launch, workflow, program)
    launch.wait_for(lambda: launch.said("hello") or _step_ended(launch))
    said = launch.cluster.core.read_namespaced_pod_log("step", launch.namespace)
    assert not _step_ended(launch), said
    job = launch.backend().get(launch.name())
    assert job is not None
    owners = job["metadata"]["ownerReferences"]
    assert [(item["kind"], item["name"]) for item in owners] == [("Workflow", workflow.name)]
    launch.cluster.core.delete_namespaced_pod("step", launch.namespace, grace_period_seconds=1)
    launch.wait_for(lambda: "step" not in _pods(launch))
    assert launch.phase() == "Running"
    _start_step(launch, workflow, program)
    launch.go()
    launch.wait_for(lambda: _step_ended(launch))
    said = launch.cluster.core.read_namespaced_pod_log("step", launch.namespace)
    assert _step_ended(launch) == "Succeeded", said
    assert f"launched {launch.name()} 1 ['gpu_hours_lost'" in said
    launch.ended = Ended("succeeded", 0)
    row(launch, "succeeded", 0, jobs=1)


EXIT_TASK = """
from kfp_tfjob.components.finish.engine import run_as_exit_task
print(run_as_exit_task(*{arguments!r}))
"""


def test_exit_task_while_the_store_is_away(launch_on_own_store, row):
    """It ends the job all the same, and what it cannot store it still says."""
    launch = launch_on_own_store
    workflow = Workflow(launch.cluster, launch.namespace).create()
    body = "print('a key:', os.environ['AWS_SECRET_ACCESS_KEY'], flush=True); time.sleep(600)"
    process = launch.start_process(body, gpus=1)
    try:
        launch.wait_said("a key:")
    finally:
        process.kill()
        process.wait()
    workflow.terminate()
    launch.objects.stop()
    secret = launch.objects.secret
    storage = (secret["AWS_ENDPOINT_URL"], secret["AWS_REGION"])
    arguments = (launch.step.run_id, str(launch.step.layout.root), *storage, "test")
    _start_step(launch, workflow, EXIT_TASK.format(arguments=arguments))
    launch.wait_for(lambda: _step_ended(launch))
    said = launch.cluster.core.read_namespaced_pod_log("step", launch.namespace)
    assert _step_ended(launch) == "Succeeded", said
    assert f"`{launch.name()}` |" in said and "| yes |" in said
    assert "## Attempt 1: cancelled" in said and "hello from chief-0" in said
    assert "a key: ******" in said and secret["AWS_SECRET_ACCESS_KEY"] not in said
    launch.ended = Ended("cancelled", 0)
    row(launch, "cancelled", 0, jobs=0)


PREFLIGHT = """
from kfp_tfjob.components.step import step
with step("preflight", *{where!r}) as context:
    context.store.probe(context.run.base)
"""


def test_exit_task_of_a_run_without_its_secret(launch, workflow):
    """Neither preflight can write to the store nor finish read it: the API server has the cause."""
    storage = (launch.objects.secret["AWS_ENDPOINT_URL"], launch.objects.secret["AWS_REGION"])
    where = (launch.step.run_id, str(launch.step.layout.root), *storage)
    node = {"id": "run-x-1", "type": "Pod", "phase": "Failed", "message": "Error (exit code 2)"}
    node |= {"name": "run-x(0).root(0).exit-handler-1(0).preflight(0).executor(0)"}
    node |= {"finishedAt": "2026-11-22T12:00:31Z"}
    annotations = {"workflows.argoproj.io/node-id": "run-x-1"}
    labels = {"pipeline/runid": launch.step.run_id}
    first = {"name": "first", "labels": labels, "annotations": annotations}
    _start_step(launch, workflow, PREFLIGHT.format(where=where), first, secret=False)
    launch.wait_for(lambda: _step_ended(launch, "first"))
    workflow.patch({"status": {"nodes": {node["id"]: node}}})
    program = EXIT_TASK.format(arguments=(*where, "test"))
    _start_step(launch, workflow, program, secret=False)
    launch.wait_for(lambda: _step_ended(launch))
    said = launch.cluster.core.read_namespaced_pod_log("step", launch.namespace)
    assert _step_ended(launch) == "Succeeded", said
    assert f"# Run {launch.step.run_id} " in said and "`storage_secret`" in said
    assert "2026-11-22 12:00:31 UTC" in said and "preflight (user_error)" in said
    launch.ended = Ended("user_error", 2)


def _start_step(
    launch: Launch,
    workflow: Workflow,
    program: str,
    metadata: dict | None = None,
    secret: bool = True,
) -> None:
    """Start a pod of a Workflow as Kubeflow Pipelines does; it is called `step`."""
    metadata = {"name": "step"} | (metadata or {})
    main = container(program, image=TOOLS, name="main")
    main["resources"]["limits"]["memory"] = "1Gi"
    main["env"] = [
        {"name": "KFP_POD_NAME", "value": metadata["name"]},
        {"name": "AWS_EC2_METADATA_DISABLED", "value": "true"},
        {"name": "KFP_RETRY_INDEX", "value": "0"},
        {"name": "STORAGE_SECRET_DIR", "value": "/etc/kfp-tfjob/storage"},
    ]
    main["volumeMounts"] = [{"name": "storage", "mountPath": "/etc/kfp-tfjob/storage"}]
    source = {"secretName": "objstore-cred" if secret else "not-made", "optional": not secret}
    volumes = [{"name": "storage", "secret": source}]
    body = pod("step", main, serviceAccountName="runner", volumes=volumes)
    body["metadata"] = metadata
    body["metadata"]["ownerReferences"] = [workflow.reference()]
    launch.cluster.core.create_namespaced_pod(launch.namespace, body)


def _step_ended(launch: Launch, name: str = "step") -> str:
    found = launch.cluster.core.read_namespaced_pod(name, launch.namespace)
    return found.status.phase if found.status.phase in ("Succeeded", "Failed") else ""


def _pods(launch: Launch) -> list[str]:
    pods = launch.cluster.core.list_namespaced_pod(launch.namespace).items
    return [item.metadata.name for item in pods]
