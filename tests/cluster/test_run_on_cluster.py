"""What the client sees of a run on a cluster: its pods, its jobs, and why they wait."""

from pathlib import Path

import pytest
from kubernetes.config import kube_config

from kfp_tfjob.jobs.labels import RUN_LABEL
from kfp_tfjob.pipelines.kubeflow.pods import RunOnCluster
from tests.cluster.access import Access
from tests.cluster.processes import wait_until
from tests.cluster.workloads import container, template

pytestmark = pytest.mark.cluster
RUN = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"


@pytest.fixture(autouse=True)
def person(cluster: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    use(cluster.kubeconfig, monkeypatch)


def use(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a kubeconfig that of this process; its client reads KUBECONFIG when it is imported."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))


def pod(cluster: Access, namespace: str, name: str, labels: dict[str, str]) -> None:
    """Make a pod that no node can take."""
    body = template(container(""), nodeSelector={"no-such": "node"})
    body["metadata"] = {"name": name, "labels": labels}
    cluster.core.create_namespaced_pod(namespace, body)


def test_pods_of_a_run_are_seen_with_the_reason_they_wait(cluster: Access, namespace: str):
    empty = RunOnCluster(RUN, namespace)
    assert not str(empty.snapshot()) and not empty.known and not empty.trouble
    pod(cluster, namespace, "step", {"pipeline/runid": RUN})
    pod(cluster, namespace, "other", {"pipeline/runid": "another-run"})
    pod(cluster, namespace, "chief", {RUN_LABEL: RUN})
    found = RunOnCluster(RUN, namespace)
    assert wait_until(lambda: bool(found.snapshot().waits), 240)
    seen = found.snapshot()
    assert (seen.steps, seen.pods) == (("step",), ("chief",))
    assert "step waits" in seen.waits[0] and "node" in seen.waits[0]
    assert str(seen) == "1 step pod, 1 training pod"
    assert found.known and namespace in found.where
    for name in ("step", "chief"):
        cluster.core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
    assert wait_until(lambda: not str(found.snapshot()), 240)
    assert found.known


def test_a_warning_about_a_running_step_is_no_reason_to_wait(cluster: Access, namespace: str):
    body = template(container("import time; time.sleep(600)"))
    body["metadata"] = {"name": "step", "labels": {"pipeline/runid": RUN}}
    cluster.core.create_namespaced_pod(namespace, body)
    about = {"kind": "Pod", "name": "step", "namespace": namespace}
    event = {"metadata": {"name": "mount"}, "involvedObject": about, "type": "Warning"}
    event |= {"reason": "FailedMount", "message": "failed to sync secret cache"}
    cluster.core.create_namespaced_event(namespace, event)

    def runs() -> bool:
        return cluster.core.read_namespaced_pod("step", namespace).status.phase == "Running"

    assert wait_until(runs, 240)
    snapshot = RunOnCluster(RUN, namespace).snapshot()
    assert (snapshot.steps, snapshot.waits) == (("step",), ())
    cluster.core.delete_namespaced_pod("step", namespace, grace_period_seconds=0)


def test_a_person_without_rights_is_told(cluster: Access, namespace: str, monkeypatch):
    kubeconfig = cluster.kubeconfig_for(namespace, "nobody", [])
    use(kubeconfig, monkeypatch)
    found = RunOnCluster(RUN, namespace)
    assert found.snapshot() is None
    assert "pods" in found.trouble
    kubeconfig.unlink()
