"""The fixture itself: what the other tests of this folder take for granted."""

import json
import os

import psutil
import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from kfp_tfjob.options.images import TOOLS
from tests.cluster.access import Access
from tests.cluster.cluster import SCARCE_NODE, Cluster
from tests.cluster.node import EXTRA, SCARCE, tolerate
from tests.cluster.processes import wait_until
from tests.cluster.workloads import container, pod, template, tfjob

pytestmark = pytest.mark.cluster

_SECONDS = 300  # only what hangs reaches it


def finish(cluster: Access, namespace: str, name: str) -> tuple[str, str]:
    """Wait until a pod has ended; return its phase and its log, or why it was not started."""

    def status() -> client.V1PodStatus:
        return cluster.core.read_namespaced_pod(name, namespace).status

    assert wait_until(lambda: status().phase in ("Succeeded", "Failed"), _SECONDS), status().phase
    ended = status()
    if not ended.container_statuses:
        return ended.phase, f"{ended.reason}: {ended.message}"
    return ended.phase, cluster.core.read_namespaced_pod_log(name, namespace)


def run(cluster: Access, namespace: str, name: str, main: dict) -> str:
    """Run a pod to Succeeded; return its log."""
    cluster.core.create_namespaced_pod(namespace, pod(name, main))
    phase, log = finish(cluster, namespace, name)
    assert phase == "Succeeded", log
    return log


def succeed(cluster: Access, namespace: str, body: dict) -> None:
    """Create a TFJob and wait until it is Succeeded."""
    cluster.create_tfjob(namespace, body)
    name = body["metadata"]["name"]
    ended = {"Succeeded", "Failed"}
    assert wait_until(lambda: cluster.conditions(namespace, name) & ended, _SECONDS)
    assert "Succeeded" in cluster.conditions(namespace, name)


def test_nodes_are_ready(cluster: Access) -> None:
    # Those that other tests have for themselves come and go.
    names = [
        node.metadata.name
        for node in cluster.core.list_node().items
        if EXTRA not in {taint.key for taint in node.spec.taints or ()}
    ]
    assert names and all(cluster.node_is_ready(name) for name in names)


def test_pod_runs_as_user_1000_and_resolves_names(cluster: Access) -> None:
    code = """
import os, socket
print(os.getuid(), socket.gethostbyname("kubernetes.default.svc"))
"""
    with cluster.namespace({"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        user, address = run(cluster, namespace, "whoami", container(code)).split()
    assert user == "1000"
    assert address == cluster.core.read_namespaced_service("kubernetes", "default").spec.cluster_ip


def test_pod_has_the_project_and_what_it_needs(cluster: Access, namespace: str) -> None:
    code = "import boto3, pydantic, kfp_tfjob.uploader.mirror as mirror; print(mirror.__name__)"
    said = run(cluster, namespace, "imports", container(code, image=TOOLS))
    assert said == "kfp_tfjob.uploader.mirror\n"


def test_pod_reaches_the_api_with_its_account(cluster: Access, namespace: str) -> None:
    cluster.kubeconfig_for(
        namespace, "reader", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    ).unlink()
    code = f"""
from kubernetes import client, config
config.load_incluster_config()
print(*[pod.metadata.name for pod in client.CoreV1Api().list_namespaced_pod("{namespace}").items])
"""
    body = pod("inside", container(code), serviceAccountName="reader")
    cluster.core.create_namespaced_pod(namespace, body)
    assert finish(cluster, namespace, "inside") == ("Succeeded", "inside\n")


def test_account_has_its_rights_and_no_others(cluster: Access, namespace: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    core = client.CoreV1Api(cluster.client_for(namespace, "reader", rules))
    assert core.list_namespaced_pod(namespace).items == []
    with pytest.raises(ApiException) as refused:
        core.list_namespaced_secret(namespace)
    assert refused.value.status == 403


def test_tfjob_tells_its_replicas_of_each_other(cluster: Access, namespace: str) -> None:
    # The chief ends when each replica has told it who it is, at the addresses of TF_CONFIG.
    code = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
if task["type"] == "chief":
    server = socket.create_server(("", 2222))
    server.settimeout(240)
    for _ in cluster["worker"]:
        print(server.accept()[0].makefile().readline(), flush=True)
else:
    host, port = cluster["chief"][0].split(":")
    deadline = time.monotonic() + 240
    while True:
        try:
            socket.create_connection((host, port), 5).sendall(json.dumps(config).encode() + b"\\n")
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
"""
    replica = template(container(code))
    succeed(cluster, namespace, tfjob("peers", {"Chief": replica, "Worker": replica}, Worker=2))
    log = cluster.core.read_namespaced_pod_log("peers-chief-0", namespace)
    told = [json.loads(line) for line in log.splitlines() if line]
    assert sorted(config["task"]["index"] for config in told) == [0, 1]
    for config in told:
        assert config["cluster"] == {
            "chief": [f"peers-chief-0.{namespace}.svc:2222"],
            "worker": [f"peers-worker-{i}.{namespace}.svc:2222" for i in (0, 1)],
        }


def test_webhook_refuses_a_tfjob_without_the_container(cluster: Access, namespace: str) -> None:
    body = tfjob("wrong", {"Chief": template(container("", name="trainer"))})
    with pytest.raises(ApiException) as refused:
        cluster.create_tfjob(namespace, body)
    assert refused.value.status == 403
    assert "tensorflow" in refused.value.body


def test_unknown_image_is_refused_at_once(own_cluster: Cluster, namespace: str) -> None:
    body = pod("unknown", container("", image="kfp-tfjob-test/absent:1"))
    own_cluster.core.create_namespaced_pod(namespace, body)

    def waiting() -> str:
        statuses = own_cluster.core.read_namespaced_pod("unknown", namespace).status
        states = [status.state.waiting for status in statuses.container_statuses or []]
        return states[0].reason if states and states[0] else ""

    pull_errors = ("ErrImagePull", "ImagePullBackOff")
    assert wait_until(lambda: waiting() in pull_errors, _SECONDS), waiting()


def test_fake_gpus_bound_what_is_scheduled(own_cluster: Cluster, namespace: str) -> None:
    gpu = f"{namespace}.test/gpu"
    own_cluster.fake_gpus(1, resource=gpu)

    def create(name: str, code: str) -> None:
        body = pod(name, container(code, {gpu: 1}), tolerations=[tolerate(SCARCE, SCARCE_NODE)])
        own_cluster.core.create_namespaced_pod(namespace, body)

    def unschedulable() -> str:
        found = own_cluster.core.read_namespaced_pod("waits", namespace).status.conditions or []
        return next((c.message for c in found if c.reason == "Unschedulable"), "")

    def place(name: str) -> str:
        return own_cluster.core.read_namespaced_pod(name, namespace).spec.node_name

    create("holds", "import time; time.sleep(600)")
    assert wait_until(lambda: place("holds") == SCARCE_NODE, _SECONDS)
    create("waits", "")
    assert wait_until(unschedulable, _SECONDS)
    assert f"Insufficient {gpu}" in unschedulable()
    own_cluster.core.delete_namespaced_pod("holds", namespace, grace_period_seconds=1)
    phase, said = finish(own_cluster, namespace, "waits")
    assert phase == "Succeeded", said
    own_cluster.fake_gpus(0, resource=gpu)


def test_pod_stores_an_object(own_cluster: Cluster, namespace: str) -> None:
    own_cluster.objects.make_bucket("pods")
    own_cluster.storage_secret(namespace)
    code = "import boto3; boto3.client('s3').put_object(Bucket='pods', Key='k', Body=b'from a pod')"
    run(own_cluster, namespace, "stores", container(code, secret="objstore-cred"))
    stored = own_cluster.objects.client().get_object(Bucket="pods", Key="k")
    assert stored["Body"].read() == b"from a pod"


def test_node_freezes_comes_back_and_is_lost(own_cluster: Cluster, namespace: str) -> None:
    node = own_cluster.add_node()
    try:
        node.freeze()
        assert wait_until(lambda: not own_cluster.node_is_ready(node.name), _SECONDS)
        node.thaw()
        assert wait_until(lambda: own_cluster.node_is_ready(node.name), _SECONDS)

        where = {"kubernetes.io/hostname": node.name}
        main = container("import time; print('here', flush=True); time.sleep(600)")
        body = pod("lost", main, nodeSelector=where, tolerations=[tolerate(EXTRA, node.name)])
        own_cluster.core.create_namespaced_pod(namespace, body)

        def phase() -> str:
            return own_cluster.core.read_namespaced_pod("lost", namespace).status.phase

        assert wait_until(lambda: phase() == "Running", _SECONDS)
        node.kill()
        assert wait_until(lambda: not own_cluster.node_is_ready(node.name), _SECONDS)

        def deleted() -> bool:
            lost = own_cluster.core.read_namespaced_pod("lost", namespace)
            return lost.metadata.deletion_timestamp is not None

        assert wait_until(deleted, _SECONDS)
    finally:
        own_cluster.remove_node(node)
    there = [item.metadata.name for item in own_cluster.core.list_node().items]
    assert node.name not in there and set(own_cluster.nodes) <= set(there)


def test_namespace_leaves_no_process(own_cluster: Cluster) -> None:
    # It is being deleted with an hour's grace, which it means to use.
    mark = f"stubborn-{os.getpid()}"
    code = f"""
import signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
print("{mark}", flush=True)
time.sleep(600)
"""

    def processes() -> list[int]:
        return [p.pid for p in psutil.process_iter(["cmdline"]) if mark in str(p.info["cmdline"])]

    with own_cluster.namespace() as namespace:
        core = own_cluster.core
        body = pod("stubborn", container(code), terminationGracePeriodSeconds=3600)
        core.create_namespaced_pod(namespace, body)

        def running() -> bool:
            return core.read_namespaced_pod("stubborn", namespace).status.phase == "Running"

        assert wait_until(running, _SECONDS)
        assert wait_until(lambda: core.read_namespaced_pod_log("stubborn", namespace), _SECONDS)
        core.delete_namespaced_pod("stubborn", namespace)
        assert processes()
    assert wait_until(lambda: not processes(), _SECONDS)
