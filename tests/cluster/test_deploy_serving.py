"""What serves a champion: accepted by the schemas of KServe and KEDA, and told apart by model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.cluster.backend import Object
from kfp_tfjob.storage.errors import StepError
from tests.cluster.cluster import Cluster
from tests.cluster.custom_resources import define
from tests.cluster.launches import ROOT

pytestmark = pytest.mark.cluster

SERVING = ROOT / "deploy" / "serving"


@pytest.fixture
def defined(own_cluster: Cluster) -> Cluster:
    """A cluster that knows the custom resources."""
    define(own_cluster)
    return own_cluster


def rendered(cluster: Cluster, folder: Path, namespace: str) -> list[Object]:
    """Return the objects of a folder as kubectl renders them, in a namespace that is there."""
    found = list(yaml.safe_load_all(cluster.kubectl("kustomize", folder)))
    for item in found:
        item["metadata"]["namespace"] = namespace
    return found


def dry_run(cluster: Cluster, found: list[Object]) -> str:
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    return cluster.kubectl("apply", *how, stdin=yaml.safe_dump_all(found))


@pytest.mark.parametrize("folder", ["keda", "kserve"])
def test_the_schemas_accept(defined: Cluster, namespace: str, folder: str) -> None:
    found = rendered(defined, SERVING / folder, namespace)
    said = dry_run(defined, found)
    assert said.count("serverside-applied (server dry run)") == len(found), said


def _misspelled(spec: dict) -> None:
    spec["predictor"]["minReplica"] = spec["predictor"].pop("minReplicas")


def _of_a_wrong_type(spec: dict) -> None:
    spec["predictor"]["containers"][0]["ports"][0]["containerPort"] = "http"


def _without_target(spec: dict) -> None:
    del spec["scaleTargetRef"]


def _without_type(spec: dict) -> None:
    del spec["triggers"][0]["type"]


@pytest.mark.parametrize(
    ("folder", "kind", "break_", "words"),
    [
        ("kserve", "InferenceService", _misspelled, "spec.predictor.minReplica"),
        ("kserve", "InferenceService", _of_a_wrong_type, "containerPort"),
        ("keda", "ScaledObject", _without_target, "spec.scaleTargetRef"),
        ("keda", "ScaledObject", _without_type, "type"),
    ],
)
def test_the_schemas_refuse_what_is_wrong(
    defined: Cluster,
    namespace: str,
    folder: str,
    kind: str,
    break_: Callable[[dict], None],
    words: str,
) -> None:
    (wrong,) = (it for it in rendered(defined, SERVING / folder, namespace) if it["kind"] == kind)
    break_(wrong["spec"])
    with pytest.raises(StepError) as refused:
        dry_run(defined, [wrong])
    assert words in str(refused.value)


def test_a_copy_serves_another_model(own_cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Its pods, names and metrics are those of its model alone."""
    copied = tmp_path / "serving"
    shutil.copytree(SERVING, copied)
    file = copied / "base" / "kustomization.yaml"
    text = file.read_text().replace("MODEL=my-model", "MODEL=Churn_2")
    file.write_text(text.replace("namespace: ", "namePrefix: churn-\nnamespace: ", 1))
    found = {it["kind"]: it for it in rendered(own_cluster, copied / "keda", namespace)}
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
