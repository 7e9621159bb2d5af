"""What a job waits for, as the log and the verdict say it: nodes, quotas and Secrets."""

import pytest

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.task_config import TaskSettings
from tests.cluster.cluster import SCARCE_NODE
from tests.cluster.launches import Launch, client_of, may_list_nodes
from tests.cluster.workloads import container, pod

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"


def _quota(launch: Launch, **hard: str) -> None:
    body = {"metadata": {"name": "team"}, "spec": {"hard": hard}}
    launch.cluster.core.create_namespaced_resource_quota(launch.namespace, body)
    launch.wait_for(
        lambda: (
            launch.cluster.core.read_namespaced_resource_quota("team", launch.namespace).status.used
        )
    )


def test_more_cpu_than_any_node_has(launch, said):
    settings = {"all": {"cpu": 500}}
    ended = launch.run(launch.spec(pod=settings, pending_timeout_seconds=4))
    launch.ended_with("unschedulable", 2, jobs=0)
    assert "lower pod.all.cpu (now 500)" in ended.message
    assert "node_selector" not in ended.message
    words = "0 of 1 running, waiting: chief-0: 0/"
    assert "Insufficient cpu" in next(x for x in said.messages if words in x)


def test_only_a_task_that_tolerates_the_taint_gets_the_node(launch, another_launch, scarce):
    """Both tasks set an accelerator that only the node with the taint has."""
    task = {"resources": {"limits": {scarce["gpu_resource"]: "1"}}}
    settings = TaskSettings.read(task)
    pod = {"all": settings.settings}
    ended = launch.run(launch.spec(gpus=settings.gpus, pod=pod, pending_timeout_seconds=4))
    launch.ended_with("unschedulable", 2, jobs=0)
    assert "untolerated taint" in ended.message and "pod.all.tolerations" in ended.message

    settings = TaskSettings.read(task | {"tolerations": scarce["tolerations"]})
    other = another_launch()
    other.run(other.spec(gpus=settings.gpus, pod={"all": settings.settings}))
    other.ended_with("succeeded", 0, jobs=1)
    assert other.node_of() == SCARCE_NODE


def test_a_secret_as_files(launch, said):
    """The pods wait for the Secret, and the log says so."""
    settings = {"all": {"volumes": [{"secret_name": "gcp", "path": "/gcp"}]}}
    launch.start(launch.spec("print(pathlib.Path('/gcp/key.json').read_text())", pod=settings))
    launch.wait_for(lambda: any('secret "gcp" not found' in line for line in said.messages))
    secret = {"metadata": {"name": "gcp"}, "stringData": {"key.json": "a key of a file"}}
    launch.cluster.core.create_namespaced_secret(launch.namespace, secret)
    assert launch.join().code == 0
    launch.ended_with("succeeded", 0, jobs=1)
    assert launch.said("a key of a file")


def test_quota_that_can_never_hold_the_job(launch, said):
    _quota(launch, **{f"requests.{GPU}": "3"})
    ended = launch.run(launch.spec(workers=1, gpus=2, pending_timeout_seconds=4))
    launch.ended_with("partly_placed", 2, jobs=0)
    assert "quota: team" in ended.message
    assert "train_gpus (now 2)" in ended.message and "ResourceQuota team raised" in ended.message
    assert launch.step.store.numbers(launch.step.run.attempts) == [1]
    assert any("exceeded quota" in line for line in said.messages)


def test_quota_that_frees_up(launch, said):
    _quota(launch, **{f"requests.{GPU}": "2"})
    other = pod("other", container("import time; time.sleep(600)", {GPU: 1}))
    launch.cluster.core.create_namespaced_pod(launch.namespace, other)
    launch.start(launch.spec(workers=1, gpus=1))
    launch.wait_for(lambda: any("exceeded quota: team" in line for line in said.messages))
    assert launch.ended is None
    launch.cluster.core.delete_namespaced_pod("other", launch.namespace, grace_period_seconds=0)
    launch.succeeds()


def test_pods_that_the_namespace_never_admits(launch):
    limits = [{"type": "Container", "max": {"cpu": "10m"}}]
    body = {"metadata": {"name": "small"}, "spec": {"limits": limits}}
    launch.cluster.core.create_namespaced_limit_range(launch.namespace, body)
    ended = launch.run(launch.spec())
    launch.ended_with("refused", 2, jobs=0)
    assert "is 10m" in ended.message


def _waits(api: ClusterClient, spec: JobSpec, words: str) -> bool:
    found = only(check(Subject(api, spec), At.RUN), Status.WAITS)
    return any(words in it.what for it in found)


def test_preflight_knows_the_largest_node_and_is_silent_without_the_right(launch):
    api = client_of(launch.kubeconfig, launch.namespace, 5).of(launch.kind)
    spec = launch.spec(pod={"all": {"cpu": 500}})
    assert not _waits(api, spec, "nodes")
    with may_list_nodes(launch):
        launch.wait_for(lambda: _waits(api, spec, "largest node"))
    assert not only(check(Subject(api, spec), At.RUN), Status.PROBLEM)


@pytest.mark.parametrize(("secret", "key"), [("absent", ""), ("objstore-cred", "token")])
def test_secret_of_a_variable_missing(launch, said, secret, key):
    token = {"secret": secret, "key": key or "token"}
    pod = {"all": {"env": {"TOKEN": token}}}
    ended = launch.run(launch.spec(pod=pod, image_pull_timeout_seconds=100))
    what = f"has no key {key}" if key else "does not exist"
    launch.ended_with("user_error", 2, jobs=0)
    assert f"Secret {secret} {what}" in ended.message and "TOKEN" in ended.message
    assert "pod.all.env.TOKEN" in ended.message
    assert any("CreateContainerConfigError" in line for line in said.messages)
