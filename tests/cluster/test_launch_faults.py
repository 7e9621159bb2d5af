"""The table of faults: for each the verdict, the exit code, the TFJobs left and the GPUs held."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kubernetes import client

from components.launch_tfjob.manifest import Identity, build_tfjob
from tests.cluster.launches import GPUS, check, new_launch, rules
from tests.cluster.workloads import container, pod

pytestmark = pytest.mark.cluster

SCENES: dict[str, Callable] = {}


def scene(play: Callable) -> Callable:
    """Note a fault that leaves servers and nodes alone, and so happens beside others."""
    SCENES[play.__name__] = play
    return play


@pytest.fixture(scope="module")
def scenes(cluster, launch_store, table, request) -> Iterator[Callable[[str], None]]:
    """Play the scenes that are selected, a few at a time; raises what one of them raised."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {call.params.get("name") for call in calls if call}

    def play(name: str) -> None:
        with cluster.namespace() as namespace:
            launch = new_launch(cluster, namespace, launch_store)
            try:
                SCENES[name](launch, check(launch, table, name))
            finally:
                launch.close()

    with ThreadPoolExecutor(3) as pool:
        played = {name: pool.submit(play, name) for name in SCENES if name in wanted}
        yield lambda name: played[name].result()


@scene
def nothing_is_wrong(launch, row):
    ended = launch.run(launch.spec("time.sleep(1)", workers=2, gpus=1))
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
    assert launch.step.store.read_manifest(launch.step.run.manifest).attempt == 1


@scene
def trainer_exits_with_1(launch, row):
    ended = launch.run(launch.spec("print('no such column'); sys.exit(1)", gpus=1))
    row("user_error", 1, jobs=1)
    assert "no such column" in ended.message and "chief-0 ended with exit code 1" in ended.message


@scene
def worker_exits_with_3(launch, row):
    body = "time.sleep(60) if me == 'chief-0' else sys.exit('rotten'  if 0 else 3)"
    ended = launch.run(launch.spec(body, workers=1, gpus=1))
    row("user_error", 3, jobs=1)
    assert "worker-0 ended with exit code 3" in ended.message


@scene
def out_of_memory(launch, row):
    body = "x = []\nwhile True: x.append(b'x' * 10_000_000)"
    launch.run(launch.spec(body, gpus=1))
    row("out_of_memory", 2, jobs=1)


@scene
def loss_not_finite(launch, row):
    launch.run(launch.spec("sys.exit(4)", gpus=1))
    row("user_error", 4, jobs=1)


@scene
def bad_image(launch, row):
    ended = launch.run(launch.spec(image="kfp-tfjob-test/absent:1", gpus=1))
    row("image_pull", 2, jobs=0)
    assert "kfp-tfjob-test/absent:1" in ended.message


@scene
def unschedulable_gpu(launch, row):
    spec = launch.spec(gpus=99, pending_timeout_seconds=3)
    ended = launch.run(spec)
    row("unschedulable", 2, jobs=0)
    assert "Insufficient nvidia.com/gpu" in ended.message


@scene
def quota_of_the_namespace(launch, row):
    hard = {"requests.nvidia.com/gpu": "1"}
    body = {"metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    launch.cluster.core.create_namespaced_resource_quota(launch.namespace, body)
    ended = launch.run(launch.spec(gpus=2, pending_timeout_seconds=4))
    row("unschedulable", 2, jobs=0)
    assert "exceeded quota: gpus" in ended.message


@scene
def chief_pod_deleted(launch, row):
    launch.start(launch.spec("time.sleep(0 if attempt > 1 else 90)", workers=1, gpus=1))
    launch.wait_said()
    launch.cluster.core.delete_namespaced_pod(f"{launch.name()}-chief-0", launch.namespace)
    ended = launch.join()
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2


@scene
def worker_pod_deleted(launch, row):
    launch.start(launch.spec("time.sleep(0 if attempt > 1 else 90)", workers=1, gpus=1))
    launch.wait_said(replica="worker-0")
    launch.cluster.core.delete_namespaced_pod(f"{launch.name()}-worker-0", launch.namespace)
    ended = launch.join()
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2


@scene
def recovery_is_bounded(launch, row):
    launch.start(launch.spec("time.sleep(90)", gpus=1, max_attempts=1))
    launch.wait_said()
    launch.cluster.core.delete_namespaced_pod(f"{launch.name()}-chief-0", launch.namespace)
    ended = launch.join()
    row("preempted_or_lost", 1, jobs=0)
    assert "chief-0 was deleted while it ran" in ended.message


@scene
def tfjob_deleted_by_somebody(launch, row):
    launch.start(launch.spec("time.sleep(90)", gpus=1))
    launch.wait_said()
    launch.cluster.kubectl("delete", "tfjob", launch.name(), "-n", launch.namespace)
    launch.join()
    row("cancelled", 2, jobs=0)


@scene
def suspended_for_a_while(launch, row):
    body = "time.sleep(4)"
    launch.start(launch.spec(body, gpus=1, pending_timeout_seconds=20))
    launch.wait_said()

    def suspend(value: bool) -> None:
        patch = json.dumps({"spec": {"runPolicy": {"suspend": value}}})
        name = (launch.name(), "-n", launch.namespace)
        launch.cluster.kubectl("patch", "tfjob", *name, "--type=merge", "-p", patch)

    suspend(True)
    launch.wait_for(lambda: not launch.gpus_held())
    assert launch.ended is None
    time.sleep(3)
    suspend(False)
    ended = launch.join()
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
    end = json.loads(launch.step.store.read(launch.step.run.attempts / "0001.end.json"))
    assert end["seconds"]["queued"] >= 3


@scene
def webhook_refuses(launch, row):
    backend = launch.backend()
    create = backend.create

    def renamed(manifest: dict) -> None:
        job = copy.deepcopy(manifest)
        chief = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
        chief["containers"][0]["name"] = "trainer"
        create(job)

    backend.create = renamed
    launch.start(launch.spec(gpus=1), backend).join()
    row("refused", 2, jobs=0)
    assert "must have at least one container with name tensorflow" in launch.ended.message


@scene
def rbac_missing(launch, row):
    only = [rule for rule in rules() if "tfjobs" not in rule["resources"]]
    only.append({"apiGroups": ["kubeflow.org"], "resources": ["tfjobs"], "verbs": ["get", "list"]})
    kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "poor", only)
    launch.start(launch.spec(gpus=1), launch.backend(kubeconfig)).join()
    row("user_error", 2, jobs=0)
    assert 'cannot create resource "tfjobs"' in launch.ended.message


@scene
def deadline(launch, row):
    launch.run(launch.spec("time.sleep(90)", gpus=1, deadline_seconds=12))
    row("deadline", 2, jobs=1)


@scene
def stalled(launch, row):
    ended = launch.run(launch.spec("time.sleep(90)", gpus=1, stall_timeout_seconds=4))
    row("stalled", 2, jobs=0)
    assert "the chief has logged nothing" in ended.message


@scene
def secret_missing(launch, row):
    launch.cluster.core.delete_namespaced_secret("objstore-cred", launch.namespace)
    ended = launch.run(launch.spec(gpus=1))
    row("user_error", 2, jobs=1)
    assert "setup of chief-0" in ended.message


@scene
def out_of_disk(launch, row):
    body = "pathlib.Path('/tmp/big').write_bytes(b'x' * 80_000_000); time.sleep(90)"
    small = {"ephemeral_storage": "20Mi"}
    launch.run(launch.spec(body, gpus=1, pod={"all": small}))
    row("out_of_disk", 2, jobs=1)


@scene
def same_name_of_another_run(launch, row):
    spec = launch.spec(gpus=1)
    theirs = build_tfjob(spec, Identity("other", 1))
    theirs["metadata"]["name"] = launch.name()
    theirs["spec"]["runPolicy"]["suspend"] = True
    launch.cluster.create_tfjob(launch.namespace, theirs)
    launch.run(spec)
    row("user_error", 2, jobs=1)
    assert "another owner" in launch.ended.message


@scene
def user_error_is_repeated_by_pipelines_and_tried_again_by_a_person(launch, row):
    spec = launch.spec("sys.exit(1)", gpus=1)
    launch.run(spec)
    assert launch.run(spec, retry=True).verdict == "user_error"
    assert launch.step.store.numbers(launch.step.run.attempts) == [1]
    launch.run(spec)
    assert launch.step.store.numbers(launch.step.run.attempts) == [1, 2]
    row("user_error", 1, jobs=2)


@pytest.mark.parametrize("name", SCENES)
def test_fault(name, scenes):
    scenes(name)


def test_preempted_by_a_more_important_pod(launch, row):
    scheduling = client.SchedulingV1Api(launch.cluster.api)
    important = f"important-{launch.namespace}"
    scheduling.create_priority_class({"metadata": {"name": important}, "value": 1000})
    try:
        launch.start(launch.spec("time.sleep(0 if attempt > 1 else 90)", gpus=GPUS))
        launch.wait_said()
        main = container("import time; time.sleep(3)", gpus=GPUS)
        body = pod("important", main, priorityClassName=important)
        launch.cluster.core.create_namespaced_pod(launch.namespace, body)
        ended = launch.join()
        row("succeeded", 0, jobs=1)
        assert ended.launched.attempts == 2
        end = launch.step.store.read(launch.step.run.attempts / "0001.end.json").decode()
        assert "PreemptionByScheduler" in end
    finally:
        scheduling.delete_priority_class(important)


def test_node_lost(launch, row):
    node = launch.cluster.add_node()
    try:
        names = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
        prefer = [{"weight": 1, "preference": {"matchExpressions": [names]}}]
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}}
        pod = {"worker": {"affinity": affinity}}
        launch.start(launch.spec("time.sleep(0 if attempt > 1 else 120)", workers=1, pod=pod))
        launch.wait_said(replica="worker-0")
        node.kill()
        ended = launch.join(180)
        assert ended.launched.attempts == 2
        row("succeeded", 0, jobs=2)  # the first one goes when somebody removes its node
        end = json.loads(launch.step.store.read(launch.step.run.attempts / "0001.end.json"))
        assert "was taken from its node: DeletionByTaintManager" in end["sentence"]
    finally:
        launch.cluster.remove_node(node)


def test_operator_down_at_create(launch, row):
    launch.cluster.operator.stop()
    try:
        launch.run(launch.spec(gpus=1))
    finally:
        launch.cluster.operator.start()
    row("operator_absent", 2, jobs=0)
    assert "failed calling webhook" in launch.ended.message


def test_operator_down_at_create_for_a_moment(launch, row):
    launch.cluster.operator.stop()
    launch.start(launch.spec(gpus=1))
    time.sleep(1)
    launch.cluster.operator.start()
    launch.join()
    row("succeeded", 0, jobs=1)


def test_operator_down_mid_run(launch, row):
    launch.start(launch.spec("time.sleep(5)", gpus=1, operator_timeout_seconds=30))
    launch.wait_said()
    launch.cluster.operator.stop()
    try:
        launch.wait_for(lambda: launch.phase() == "Succeeded")
    finally:
        launch.cluster.operator.start()
    launch.join()
    row("succeeded", 0, jobs=1)


def test_operator_does_not_come_back(launch, row):
    launch.start(launch.spec("time.sleep(5)", gpus=1))
    launch.wait_said()
    launch.cluster.operator.stop()
    try:
        launch.join()
    finally:
        launch.cluster.operator.start()
    row("operator_absent", 2, jobs=0)
    assert "a pod has ended, and the job still says nothing of it" in launch.ended.message


def test_api_server_restarted_mid_run(launch, row):
    launch.start(launch.spec("time.sleep(12)", gpus=1))
    launch.wait_said()
    launch.cluster.apiserver.restart()
    launch.join()
    row("succeeded", 0, jobs=1)


def test_sidecar_cannot_store_in_time(launch, row):
    body = "time.sleep(6 if attempt == 1 else 0)"
    launch.start(launch.spec(body, gpus=1, store_deadline_seconds=3))
    launch.wait_said()
    launch.cluster.objects.stop()
    try:
        launch.wait_for(lambda: launch.phase() in ("Failed", "") and not launch.ended)
    finally:
        launch.cluster.objects.start()
    ended = launch.join()
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2
    end = json.loads(launch.step.store.read(launch.step.run.attempts / "0001.end.json"))
    assert end["verdict"] == "store_unavailable" and end["code"] == 145


def test_two_jobs_want_the_same_gpus(launch, row, own_cluster, launch_store):
    with own_cluster.namespace() as namespace:
        other = new_launch(own_cluster, namespace, launch_store)
        limits = {"partly_placed_seconds": 3, "pending_timeout_seconds": 90, "backoff_seconds": 2}
        for each in (launch, other):
            each.start(each.spec("time.sleep(1)", workers=2, gpus=GPUS // 3, **limits))
        assert launch.join(180).verdict == other.join(180).verdict == "succeeded"
        row("succeeded", 0, jobs=1)
        assert len(other.jobs()) == 1
        other.close()


def test_partly_placed(launch, row):
    spec = launch.spec("time.sleep(90)", workers=2, gpus=GPUS // 2, pending_timeout_seconds=6)
    ended = launch.run(spec)
    row("partly_placed", 2, jobs=0)
    assert "Kueue" in ended.message and "Insufficient nvidia.com/gpu" in ended.message
