"""The table of faults: for each the verdict, the exit code, the jobs left and the GPUs held.

Here are those of a job; test_launch_outages.py has those of what is below it, and
test_launch_lives.py those of launchers and runs.
"""

from __future__ import annotations

import json
import time

import pytest
from kubernetes import client

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.manifest import Identity, build_job
from tests.cluster.admission import webhook
from tests.cluster.launches import UNTIL_GO, Launch, new_launch, on_both_kinds, rules
from tests.cluster.workloads import container, pod

pytestmark = [pytest.mark.cluster, on_both_kinds]


def test_nothing_is_wrong(launch, row):
    ended = launch.run(launch.spec("time.sleep(1)", workers=2, gpus=1))
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
    assert launch.step.store.read_manifest(launch.step.run.manifest).attempt == 1


def test_trainer_exits_with_1(launch, row):
    ended = launch.run(launch.spec("print('no such column'); sys.exit(1)", gpus=1))
    row(launch, "user_error", 1, jobs=1)
    assert "chief-0" in ended.message


def test_worker_exits_with_3(launch, row):
    body = "time.sleep(600) if me == 'chief-0' else sys.exit(3)"
    ended = launch.run(launch.spec(body, workers=1, gpus=1))
    row(launch, "user_error", 3, jobs=1)
    assert "worker-0" in ended.message


def test_out_of_memory(launch, row):
    body = "x = []\nwhile True: x.append(b'x' * 10_000_000)"
    launch.run(launch.spec(body, gpus=1))
    row(launch, "out_of_memory", 2, jobs=1)


def test_loss_not_finite(launch, row):
    launch.run(launch.spec("sys.exit(4)", gpus=1))
    row(launch, "user_error", 4, jobs=1)


def test_bad_image(launch, row):
    ended = launch.run(launch.spec(image="kfp-tfjob-test/absent:1", gpus=1))
    row(launch, "image_pull", 2, jobs=0)
    assert "kfp-tfjob-test/absent:1" in ended.message


def test_unschedulable_gpu(launch, row):
    ended = launch.run(launch.spec(gpus=999, pending_timeout_seconds=3))
    row(launch, "unschedulable", 2, jobs=0)
    assert "Insufficient nvidia.com/gpu" in ended.message


def test_quota_of_the_namespace(launch, row):
    hard = {"requests.nvidia.com/gpu": "1"}
    body = {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    launch.cluster.core.create_namespaced_resource_quota(launch.namespace, body)
    ended = launch.run(launch.spec(gpus=2, pending_timeout_seconds=4))
    row(launch, "unschedulable", 2, jobs=0)
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


def test_chief_pod_deleted(launch, row):
    store, run = launch.step.store, launch.step.run
    launch.start(launch.spec(LEAVES_FILES, workers=1, gpus=1))
    launch.wait_said()
    stored = run.checkpoints / "1" / "manifest.json"
    launch.wait_for(lambda: stored in [item.address for item in store.list(run.checkpoints)])
    launch.cluster.core.delete_namespaced_pod(launch.pod(), launch.namespace)
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2
    keys = {item.key for item in store.read_manifest(run.manifest).objects}
    assert {"output/checkpoints/1/weights", "output/own/best.keras"} <= keys


def test_worker_pod_deleted(launch, row):
    launch.start(launch.spec("time.sleep(0 if attempt > 1 else 600)", workers=1, gpus=1))
    launch.wait_said(replica="worker-0")
    launch.cluster.core.delete_namespaced_pod(launch.pod("worker-0"), launch.namespace)
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2


def test_recovery_is_bounded(launch, row):
    launch.start(launch.spec("time.sleep(600)", gpus=1, max_attempts=1))
    launch.wait_said()
    launch.cluster.core.delete_namespaced_pod(launch.pod(), launch.namespace)
    ended = launch.join()
    row(launch, "preempted_or_lost", 1, jobs=0)
    assert "chief-0" in ended.message


def test_job_deleted_by_somebody(launch, row):
    launch.start(launch.spec("time.sleep(600)", gpus=1))
    launch.wait_said()
    launch.cluster.kubectl("delete", launch.kind.plural, launch.name(), "-n", launch.namespace)
    launch.join()
    row(launch, "cancelled", 2, jobs=0)


def test_suspended_for_a_while(launch, row):
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
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
    end = json.loads(launch.step.store.read(launch.step.run.attempts / "0001.end.json"))
    assert end["seconds"]["queued"] >= 30


def test_suspended_for_ever(launch, row):
    launch.start(launch.spec("time.sleep(600)", gpus=1, queue_timeout_seconds=5))
    launch.wait_said()
    _suspend(launch, True)
    ended = launch.join()
    row(launch, "unschedulable", 2, jobs=0)
    assert "queue" in ended.message


def _suspend(launch: Launch, value: bool) -> None:
    kind = launch.kind
    body = {"spec": {"suspend": value} if kind is JOBSET else {"runPolicy": {"suspend": value}}}
    path = (kind.group, kind.version, launch.namespace, kind.plural, launch.name())
    launch.cluster.custom.patch_namespaced_custom_object(*path, body)


def test_webhook_refuses(launch, row):
    answer = "team a has no budget left"
    with webhook(launch.cluster, launch.namespace, answer):
        ended = launch.run(launch.spec(gpus=1))
    row(launch, "refused", 2, jobs=0)
    assert answer in ended.message


def test_rbac_missing(launch, row):
    group, plural = launch.kind.group, launch.kind.plural
    only = [rule for rule in rules() if plural not in rule["resources"]]
    only.append({"apiGroups": [group], "resources": [plural], "verbs": ["get", "list"]})
    kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "poor", only)
    launch.start(launch.spec(gpus=1), launch.backend(kubeconfig)).join()
    row(launch, "user_error", 2, jobs=0)
    assert f'"{plural}"' in launch.ended.message


def test_deadline(launch, row):
    launch.run(launch.spec("time.sleep(600)", gpus=1, deadline_seconds=12))
    row(launch, "deadline", 2, jobs=1)


def test_stalled(launch, row):
    ended = launch.run(launch.spec("time.sleep(600)", gpus=1, stall_timeout_seconds=4))
    row(launch, "stalled", 2, jobs=0)
    assert "chief" in ended.message


def test_secret_missing(launch, row):
    launch.cluster.core.delete_namespaced_secret("objstore-cred", launch.namespace)
    ended = launch.run(launch.spec(gpus=1))
    row(launch, "user_error", 2, jobs=1)
    assert "chief-0" in ended.message


def test_out_of_disk(launch, row):
    body = "pathlib.Path('/tmp/big').write_bytes(b'x' * 80_000_000); time.sleep(600)"
    small = {"ephemeral_storage": "20Mi"}
    launch.run(launch.spec(body, gpus=1, pod={"all": small}))
    row(launch, "out_of_disk", 2, jobs=1)


def test_same_name_of_another_run(launch, row):
    spec = launch.spec(gpus=1)
    theirs = build_job(spec, Identity("other", 1))
    theirs["metadata"]["name"] = launch.name()
    place = theirs["spec"] if launch.kind is JOBSET else theirs["spec"]["runPolicy"]
    place["suspend"] = True
    path = (launch.kind.group, launch.kind.version, launch.namespace, launch.kind.plural)
    launch.cluster.custom.create_namespaced_custom_object(*path, theirs)
    launch.run(spec)
    row(launch, "user_error", 2, jobs=1)


def test_user_error_is_repeated_by_pipelines_and_tried_again_by_a_person(launch, row):
    spec = launch.spec("sys.exit(1)", gpus=1)
    launch.run(spec)
    assert launch.run(spec, retry=True).verdict == "user_error"
    assert launch.step.store.numbers(launch.step.run.attempts) == [1]
    launch.run(spec)
    assert launch.step.store.numbers(launch.step.run.attempts) == [1, 2]
    row(launch, "user_error", 1, jobs=2, name="user error, tried again by a person")


def test_preempted_by_a_more_important_pod(launch, row, scarce):
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
        ended = launch.join()
        row(launch, "succeeded", 0, jobs=1)
        assert ended.launched.attempts == 2
        end = launch.step.store.read(launch.step.run.attempts / "0001.end.json").decode()
        assert "PreemptionByScheduler" in end
    finally:
        scheduling.delete_priority_class(important)


def test_two_jobs_want_the_same_gpus(launch, row, own_cluster, launch_store, scarce):
    limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 300, "backoff_seconds": 2}
    limits["pod"] = {"all": scarce}
    # These do not wait for each other: a chief that ends before it counts as partly placed is done.
    body = "time.sleep(20)"
    with (
        own_cluster.namespace() as namespace,
        new_launch(own_cluster, namespace, launch_store, kind=launch.kind) as other,
    ):
        for each in (launch, other):
            each.start(each.spec(body, workers=2, gpus=2, **limits))
        assert launch.join(600).verdict == other.join(600).verdict == "succeeded"
        row(launch, "succeeded", 0, jobs=1)
        assert len(other.jobs()) == 1


def test_partly_placed(launch, row, scarce):
    limits = {"partly_placed_seconds": 4, "pending_timeout_seconds": 6, "pod": {"all": scarce}}
    ended = launch.run(launch.spec("time.sleep(600)", workers=2, gpus=4, **limits))
    row(launch, "partly_placed", 2, jobs=0)
    assert "Kueue" in ended.message and f"Insufficient {scarce['gpu_resource']}" in ended.message
