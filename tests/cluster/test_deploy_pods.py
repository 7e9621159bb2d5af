"""What serves a champion and what shows its runs, started where it can be."""

import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options.container_images import TOOLS
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.cluster import Cluster
from tests.cluster.launches import BUCKET, ROOT
from tests.cluster.processes import wait_until
from tests.local.published import VERDICT, publish_files

pytestmark = pytest.mark.cluster

SERVING = ROOT / "deploy" / "serving"


def test_a_copy_serves_another_model(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Its pods, names and metrics are those of its model alone."""
    copied = tmp_path / "serving"
    shutil.copytree(SERVING, copied)
    file = copied / "base" / "kustomization.yaml"
    text = file.read_text().replace("MODEL=my-model", "MODEL=Churn_2")
    file.write_text(text.replace("namespace: ", "namePrefix: churn-\nnamespace: ", 1))
    found = {it["kind"]: it for it in cluster.rendered(copied / "keda", namespace)}
    mine = {"app.kubernetes.io/name": "kfp-tfjob-serving", "app.kubernetes.io/instance": "Churn_2"}
    deployment = found["Deployment"]
    assert "replicas" not in deployment["spec"]  # KEDA's
    assert deployment["spec"]["selector"]["matchLabels"] == mine
    assert deployment["spec"]["template"]["metadata"]["labels"] == mine
    assert found["Service"]["spec"]["selector"] == mine
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == mine
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = found["ConfigMap"]["metadata"]["name"]
    assert container["envFrom"] == [{"configMapRef": {"name": settings}}]
    scaled = found["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"] == "churn-serving"
    assert 'model_name="Churn_2"' in scaled["triggers"][0]["metadata"]["query"]


@pytest.fixture
def served(cluster: Cluster, restricted: str, launch_store: Store) -> Callable[[int], Champion]:
    """Publishes champions of `my-model`; the namespace has the Secret, and is `restricted`."""
    cluster.storage_secret(restricted)
    layout = Layout(S3Address(BUCKET, restricted))

    def promote(number: int) -> Champion:
        files = {"saved_model.pb": b"graph %d" % number, "variables/variables.index": b"-"}
        return publish_files(launch_store, layout, "my-model", number, files)

    return promote


def settings(found: list[Object], namespace: str) -> None:
    """Write the address of the models into the ConfigMap."""
    (item,) = (it for it in found if it["kind"] == "ConfigMap")
    item["data"]["KFP_TFJOB_OUTPUT_URI"] = f"s3://{BUCKET}/{namespace}"


def test_the_sidecar_feeds_a_server_of_files(
    cluster: Cluster, namespace: str, served: Callable[[int], Champion]
) -> None:
    """A server of files stands for TensorFlow Serving, whose image this host cannot have."""
    served(1)
    found = cluster.rendered(SERVING / "tensorflow-serving", namespace)
    settings(found, namespace)
    (deployment,) = (it for it in found if it["kind"] == "Deployment")
    deployment["spec"]["replicas"] = 1
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    server["image"] = TOOLS
    server["command"] = ["python3", "-m", "http.server", "8501", "--directory"]
    server["args"] = ["/models"]
    cluster.apply(found)
    where = ("-n", namespace, "--timeout=300s")
    cluster.kubectl("rollout", "status", "deployment/tensorflow-serving", *where)
    (pod,) = cluster.core.list_namespaced_pod(namespace).items

    def there(number: int) -> bool:
        url = f"http://{pod.status.pod_ip}:8501/my-model/{number}/saved_model.pb"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read() == b"graph %d" % number
        except OSError:
            return False

    assert there(1)
    served(2)
    assert wait_until(lambda: there(2), 240) and there(1)
    served(3)
    assert wait_until(lambda: there(3) and not there(1), 240) and there(2)


def test_the_nightly_comparison_starts_in_its_image(
    cluster: Cluster, namespace: str, served: Callable[[int], Champion]
) -> None:
    served(1)
    found = cluster.rendered(SERVING / "monitor", namespace)
    settings(found, namespace)
    cluster.apply(found)
    cluster.kubectl("create", "job", "now", "--from=cronjob/serving-monitor", "-n", namespace)
    where = ("-n", namespace, "--timeout=300s")
    cluster.kubectl("wait", "--for=condition=Failed", "job/now", *where)
    (pod,) = cluster.core.list_namespaced_pod(namespace).items
    assert pod.status.container_statuses[0].state.terminated.exit_code == 3
    said = cluster.core.read_namespaced_pod_log(pod.metadata.name, namespace)
    assert "version 1 of my-model" in said


def test_tensorboard_starts_in_its_image(
    cluster: Cluster, restricted: str, launch_store: Store
) -> None:
    cluster.storage_secret(restricted)
    verdict = VERDICT | {"model_name": "my-model"}
    run = Layout(S3Address(BUCKET, restricted)).run("r1")
    launch_store.write(run.verdict, json.dumps(verdict).encode())
    found = cluster.rendered(ROOT / "deploy" / "optional" / "tensorboard", restricted)
    settings(found, restricted)
    cluster.apply(found)
    where = ("-n", restricted, "--timeout=300s")
    cluster.kubectl("rollout", "status", "deployment/tensorboard", *where)
    (pod,) = cluster.core.list_namespaced_pod(restricted).items

    def said() -> str:
        return cluster.core.read_namespaced_pod_log(pod.metadata.name, restricted)

    assert wait_until(lambda: "my-model" in said(), 240), said()
