"""The table of faults: for each the verdict, the exit code, the jobs left and the GPUs held.

Here are those of a job; test_launch_outages.py has those of what is below it, and
test_launch_lives.py those of launchers and runs.
"""

import time

import pytest
from kubernetes import client

from kfp_tfjob.jobs.jobset import JOBSET
from tests.cluster.admission import webhook
from tests.cluster.launches import UNTIL_GO, Launch, on_both_kinds, rules
from tests.cluster.workloads import container, pod

pytestmark = [pytest.mark.cluster, on_both_kinds]


def test_nothing_is_wrong(launch):
    launch.start(launch.spec("time.sleep(1)", workers=2, gpus=1)).succeeds()
    assert launch.step.store.read_manifest(launch.step.run.manifest).attempt == 1


def test_trainer_exits_with_1(launch):
    ended = launch.run(launch.spec("print('no such column'); sys.exit(1)", gpus=1))
    launch.ended_with("user_error", 1, jobs=1)
    assert "chief-0" in ended.message


def test_worker_exits_with_3(launch):
    body = "time.sleep(600) if me == 'chief-0' else sys.exit(3)"
    ended = launch.run(launch.spec(body, workers=1, gpus=1))
    launch.ended_with("user_error", 3, jobs=1)
    assert "worker-0" in ended.message


def test_out_of_memory(launch):
    body = "x = []\nwhile True: x.append(b'x' * 10_000_000)"
    launch.run(launch.spec(body, gpus=1))
    launch.ended_with("out_of_memory", 2, jobs=1)


def test_bad_image(launch):
    ended = launch.run(launch.spec(image="kfp-tfjob-test/absent:1", gpus=1))
    launch.ended_with("image_pull", 2, jobs=0)
    assert "kfp-tfjob-test/absent:1" in ended.message


def test_unschedulable_gpu(launch):
    ended = launch.run(launch.spec(gpus=999, pending_timeout_seconds=3))
    launch.ended_with("unschedulable", 2, jobs=0)
    assert "Insufficient nvidia.com/gpu" in ended.message


def test_quota_of_the_namespace(launch):
    hard = {"requests.nvidia.com/gpu": "1"}
    body = {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    launch.cluster.core.create_namespaced_resource_quota(launch.namespace, body)
    ended = launch.run(launch.spec(gpus=2, pending_timeout_seconds=4))
    launch.ended_with("unschedulable", 2, jobs=0)
    assert "gpus" in ended.message


# The first attempt leaves a checkpoint, and a file beside it that no other attempt writes.
LEAVES_FILES = """
if me == "chief-0" and attempt == 1:
    (output / "own").mkdir()
    (output / "own/best.keras").write_bytes(b"best")
    (output / "checkpoints/.1.tmp").mkdir(parents=True)
    (output / "checkpoints/.1.tmp/weights").write_bytes(b"w")
    (output / "checkpoints/.1.tmp").rename(output / "checkpoints/1")
time.sleep(0 if attempt > 1 else 600)
"""


def test_chief_pod_deleted(launch):
    store, run = launch.step.store, launch.step.run
    launch.start(launch.spec(LEAVES_FILES, workers=1, gpus=1))
    launch.wait_said()
    stored = run.checkpoints / "1" / "manifest.json"
    launch.wait_for(lambda: stored in [item.address for item in store.list(run.checkpoints)])
    launch.cluster.core.delete_namespaced_pod(launch.pod(), launch.namespace)
    launch.succeeds(attempts=2)
    keys = {item.key for item in store.read_manifest(run.manifest).objects}
    assert {"output/checkpoints/1/weights", "output/own/best.keras"} <= keys


def test_worker_pod_deleted(launch):
    launch.start(launch.spec("time.sleep(0 if attempt > 1 else 600)", workers=1, gpus=1))
    launch.wait_said(replica="worker-0")
    launch.cluster.core.delete_namespaced_pod(launch.pod("worker-0"), launch.namespace)
    launch.succeeds(attempts=2)


def test_job_deleted_by_somebody(launch):
    launch.start(launch.spec("time.sleep(600)", gpus=1))
    launch.wait_said()
    launch.cluster.kubectl("delete", launch.kind.plural, launch.name(), "-n", launch.namespace)
    launch.join()
    launch.ended_with("cancelled", 2, jobs=0)


def test_suspended_for_a_while(launch):
    """It is suspended for longer than it may wait for nodes: that time counts apart."""
    launch.start(launch.spec(UNTIL_GO, gpus=1, pending_timeout_seconds=30))
    launch.wait_said()
    _suspend(launch, True)
    launch.wait_for(lambda: not launch.phase())
    time.sleep(32)
    assert launch.ended is None
    _suspend(launch, False)
    launch.wait_said()
    launch.go()
    launch.succeeds()
    assert launch.end_record()["seconds"]["queued"] >= 30


def test_suspended_for_ever(launch):
    launch.start(launch.spec("time.sleep(600)", gpus=1, queue_timeout_seconds=5))
    launch.wait_said()
    _suspend(launch, True)
    ended = launch.join()
    launch.ended_with("unschedulable", 2, jobs=0)
    assert "queue" in ended.message


def _suspend(launch: Launch, value: bool) -> None:
    run_policy = {"suspend": value}
    body = {"spec": run_policy if launch.kind is JOBSET else {"runPolicy": run_policy}}
    launch.cluster.custom.patch_namespaced_custom_object(*launch.place, launch.name(), body)


def test_webhook_refuses(launch):
    answer = "team a has no budget left"
    with webhook(launch, answer):
        ended = launch.run(launch.spec(gpus=1))
    launch.ended_with("refused", 2, jobs=0)
    assert answer in ended.message


def test_rbac_missing(launch):
    group, plural = launch.kind.group, launch.kind.plural
    only = [rule for rule in rules() if plural not in rule["resources"]]
    only.append({"apiGroups": [group], "resources": [plural], "verbs": ["get", "list"]})
    kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "poor", only)
    launch.start(launch.spec(gpus=1), launch.backend(kubeconfig)).join()
    launch.ended_with("user_error", 2, jobs=0)
    assert f'"{plural}"' in launch.ended.message


def test_deadline(launch):
    launch.run(launch.spec("time.sleep(600)", gpus=1, deadline_seconds=12))
    launch.ended_with("deadline", 2, jobs=1)


def test_stalled(launch):
    ended = launch.run(launch.spec("time.sleep(600)", gpus=1, stall_timeout_seconds=4))
    launch.ended_with("stalled", 2, jobs=0)
    assert "chief" in ended.message


def test_secret_missing(launch):
    launch.cluster.core.delete_namespaced_secret("objstore-cred", launch.namespace)
    ended = launch.run(launch.spec(gpus=1))
    launch.ended_with("user_error", 2, jobs=1)
    assert "chief-0" in ended.message


def test_out_of_disk(launch):
    body = "pathlib.Path('/tmp/big').write_bytes(b'x' * 80_000_000); time.sleep(600)"
    small = {"ephemeral_storage": "20Mi"}
    launch.run(launch.spec(body, gpus=1, pod={"all": small}))
    launch.ended_with("out_of_disk", 2, jobs=1)


def test_preempted_by_a_more_important_pod(launch, scarce):
    scheduling = client.SchedulingV1Api(launch.cluster.api)
    important = f"important-{launch.namespace}"
    scheduling.create_priority_class({"metadata": {"name": important}, "value": 1000})
    try:
        ours = {"all": scarce}
        launch.start(launch.spec("time.sleep(0 if attempt > 1 else 600)", gpus=8, pod=ours))
        launch.wait_said()
        main = container("import time; time.sleep(3)", {scarce["gpu_resource"]: 8})
        where = scarce["tolerations"]
        body = pod("important", main, priorityClassName=important, tolerations=where)
        launch.cluster.core.create_namespaced_pod(launch.namespace, body)
        launch.succeeds(attempts=2)
        assert "PreemptionByScheduler" in str(launch.end_record())
    finally:
        scheduling.delete_priority_class(important)


def test_two_jobs_want_the_same_gpus(launch, another_launch, scarce):
    limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 300, "backoff_seconds": 2}
    limits["pod"] = {"all": scarce}
    # These do not wait for each other: a chief that ends before it counts as partly placed is done.
    body = "time.sleep(20)"
    other = another_launch()
    for each in (launch, other):
        each.start(each.spec(body, workers=2, gpus=2, **limits))
    assert launch.join(600).verdict == other.join(600).verdict == "succeeded"
    launch.ended_with("succeeded", 0, jobs=1)
    assert len(other.jobs()) == 1


def test_partly_placed(launch, scarce):
    limits = {"partly_placed_seconds": 4, "pending_timeout_seconds": 6, "pod": {"all": scarce}}
    ended = launch.run(launch.spec("time.sleep(600)", workers=2, gpus=4, **limits))
    launch.ended_with("partly_placed", 2, jobs=0)
    assert "Kueue" in ended.message and f"Insufficient {scarce['gpu_resource']}" in ended.message
