"""What outlives what: launchers that end before their job, runs that are ended, the exit task."""

import json
import time

import pytest

from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish import run_report
from kfp_tfjob.components.finish.leftover_jobs import end_jobs_on
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.jobs.job_diagnosis import judge
from kfp_tfjob.pipelines.compilation import FOLDER
from tests.cluster.compiled import Compiled
from tests.cluster.launches import UNTIL_GO, Launch, on_both_kinds
from tests.cluster.step_pods import Ended as EndedStep
from tests.cluster.step_pods import StepPods
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster


def run_step(
    launch: Launch, workflow: Workflow, name: str, phase: str = "Succeeded", **inputs: str
) -> EndedStep:
    """Run a step of the compiled pipeline in a pod of a Workflow."""
    step, store = launch.step, launch.step.store
    known = defaults() | {"run_id": step.run_id, "output_uri": str(step.layout.root)}
    known |= {"storage_endpoint": store.endpoint, "storage_region": store.region}
    known |= {"data_uri": f"{step.layout.root}/x.csv", "data_label": "y", "model_name": "test"}
    tasks = Compiled(FOLDER / "tfjob_training.yaml").steps(known | inputs)
    task = next(it for it in tasks if it.name == name)
    pods = StepPods(launch.cluster, launch.namespace, "runner", workflow, step.run_id)
    pods.start(task)
    return pods.join(task, phase)


@on_both_kinds
def test_launcher_killed_and_started_again(launch):
    process = launch.start_process(UNTIL_GO, gpus=1)
    launch.wait_said()
    process.kill()
    process.wait()
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.go()
    launch.succeeds()


@on_both_kinds
def test_launcher_gone_for_good(launch):
    """The dead-man's switch: without a heartbeat the chief saves, stops and frees the GPUs."""
    body = "time.sleep(0 if attempt > 1 else 600)"
    limits = {"gpus": 1, "workers": 1, "orphan_timeout_seconds": 12}
    process = launch.start_process(body, **limits)
    launch.wait_said()
    time.sleep(14)  # longer than the timeout: the heartbeat keeps the chief alive
    assert launch.phase() == "Running"
    process.kill()
    process.wait()
    backend = launch.backend()

    def verdict() -> str:
        job = backend.get(launch.name())
        return str(judge(job, backend.pods(launch.name())).verdict) if _over(job) else ""

    launch.wait_for(verdict)
    assert verdict() == "orphaned"
    launch.wait_for(lambda: launch.gpus_held() == 0)
    launch.start(launch.spec(body, **limits)).succeeds(attempts=2)


@on_both_kinds
def test_chief_pending_and_launcher_gone(launch):
    """Workers that hold GPUs wait for the chief's name only so long."""
    nowhere = {"chief": {"node_selector": {"kubernetes.io/hostname": "nowhere"}}}
    arguments = {"workers": 2, "gpus": 1, "pod": nowhere, "start_timeout_seconds": 5}
    process = launch.start_process("time.sleep(600)", **arguments)
    launch.wait_for(lambda: launch.gpus_held() == 2)
    process.kill()
    process.wait()
    launch.wait_for(lambda: launch.gpus_held() == 0)
    # Who starts it again learns that the infrastructure was at fault, and waits for a node.
    limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 8}
    ended = launch.run(launch.spec("time.sleep(600)", **arguments | limits))
    # Which limit ends the last attempt depends on how soon its workers get their nodes.
    assert ended.verdict in ("partly_placed", "unschedulable")
    launch.ended_with(ended.verdict, 2, jobs=0)


@on_both_kinds
def test_exit_task_after_terminate(launch, workflow, monkeypatch):
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
    launch.wait_said()
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
    assert (failure["verdict"], failure["code"]) == ("cancelled", 143)
    launch.has_left(jobs=0)


def test_why_it_failed(launch):
    """What a person reads when the exit task comes to a job that failed."""
    # A chief that succeeds at once may take the pod of the worker with it.
    body = "time.sleep(600) if me == 'chief-0' else print('no column y'); sys.exit(3)"
    launch.run(launch.spec(body, workers=1))
    left = end_jobs_on(launch.backend(), launch.step.run_id)
    markdown = run_report.explain(left.ends)
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


def test_exit_task_while_the_store_is_away(launch_on_own_store):
    """It ends the job all the same, and what it cannot store it still says."""
    launch = launch_on_own_store
    workflow = Workflow(launch.cluster, launch.namespace).create(launch.step.run_id)
    body = "print('a key:', os.environ['AWS_SECRET_ACCESS_KEY'], flush=True); time.sleep(600)"
    process = launch.start_process(body, gpus=1)
    launch.wait_said("a key:")
    process.kill()
    process.wait()
    workflow.terminate()
    launch.objects.stop()
    ended = run_step(launch, workflow, "finish")
    said = ended.files["run_summary"]
    assert f"`{launch.name()}` |" in said and "| yes |" in said
    assert "## Attempt 1: cancelled" in said and "hello from chief-0" in said
    assert "a key: ******" in said
    assert launch.objects.keys["AWS_SECRET_ACCESS_KEY"] not in said + ended.log
    launch.has_left(jobs=0)


def test_exit_task_of_a_run_without_its_secret(launch, workflow):
    """Neither preflight can write to the store nor finish read it: the API server has the cause."""
    run_step(launch, workflow, "preflight", "Failed", storage_secret="not-made")
    node = {"id": "run-x-preflight", "type": "Pod", "phase": "Failed"}
    node |= {"name": "run-x(0).root(0).exit-handler-1(0).preflight(0).executor(0)"}
    node |= {"message": "Error (exit code 2)", "finishedAt": "2026-11-22T12:00:31Z"}
    workflow.patch({"status": {"nodes": {node["id"]: node}}})
    ended = run_step(launch, workflow, "finish", storage_secret="not-made")
    said = ended.files["run_summary"]
    assert f"# Run {launch.step.run_id} " in said and "`storage_secret`" in said
    assert "2026-11-22 12:00:31 UTC" in said
    assert "preflight (user_error)" in ended.log, (said, ended.log)
