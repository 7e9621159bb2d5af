"""The manifests of deploy/, without a cluster."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient

from kfp_tfjob.cluster import rights
from kfp_tfjob.cluster.create_job import lost_fields
from kfp_tfjob.jobs.kinds import KINDS
from kfp_tfjob.options.container_images import PLACEHOLDER, tools_in
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.storage.credentials import MOUNT
from tests.problems import problem_of

DEPLOY = Path(__file__).parents[2] / "deploy"


def granted(file: str) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in yaml.safe_load((DEPLOY / file).read_text())["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def checked(*wanted: rights.Right) -> set[tuple[str, str, str]]:
    return {(right.group, right.resource, verb) for right in wanted for verb in right.verbs}


def test_the_role_grants_what_is_checked_and_nothing_else():
    needed = [right for kind in KINDS for right in rights.to_run(kind)]
    place = ("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads", "get")
    expected = checked(*needed, *rights.TO_STOP, *rights.TO_EXPLAIN) | {place}
    assert granted("base/role.yaml") == expected
    assert not any(resource == "secrets" for _, resource, _ in expected)


def test_only_replicas_reach_replicas():
    spec = yaml.safe_load((DEPLOY / "base/network-policy.yaml").read_text())["spec"]
    labels = {"app.kubernetes.io/managed-by": "kfp-tfjob", "kfp-tfjob/task": "launch-tfjob"}
    replicas = {"podSelector": {"matchLabels": labels}}
    assert spec == replicas | {"policyTypes": ["Ingress"], "ingress": [{"from": [replicas]}]}


def test_the_optional_role_for_nodes():
    assert granted("optional/nodes/cluster-role.yaml") == {("", "nodes", "list")}


def test_pods_of_dask_have_the_tools_image_the_keys_of_the_store_and_tls() -> None:
    found = yaml.safe_load((DEPLOY / "optional/dask/dask-cluster.yaml").read_text())
    service = found["spec"]["scheduler"]["service"]
    assert not list(lost_fields(ApiClient(), service, "V1ServiceSpec"))
    address = f"tls://{found['metadata']['name']}-scheduler:8786"
    assert parse(DataOptions, "data_options", {"dask": address}).dask == address
    for role in ("scheduler", "worker"):
        pod = found["spec"][role]["spec"]
        assert not list(lost_fields(ApiClient(), pod, "V1PodSpec"))
        (container,) = pod["containers"]
        assert container["image"] == tools_in(PLACEHOLDER)
        variables = {item["name"]: item["value"] for item in container["env"]}
        assert variables["DASK_SCHEDULER_ADDRESS"] == address
        assert str(MOUNT) in {item["mountPath"] for item in container["volumeMounts"]}


@pytest.mark.parametrize("address", ["scheduler:8786", "tcp://scheduler", "http://scheduler:8787"])
def test_what_is_no_address_of_a_scheduler_is_refused(address: str) -> None:
    problem = problem_of(parse, DataOptions, "data_options", {"dask": address})
    assert problem.path == "data_options.dask"


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _nested(item)


def test_a_missing_secret_of_the_store_stops_no_pod() -> None:
    """The rights may be those of the service account; and the program says which key is missing."""
    found = [
        volume["secret"]
        for path in sorted((DEPLOY / "serving").rglob("*.yaml"))
        for part in _nested(list(yaml.safe_load_all(path.read_text())))
        for volume in part.get("volumes") or ()
        if "secret" in volume
    ]
    assert len(found) == 4
    assert all(secret["optional"] is True for secret in found)


# The first release of EKS images for AL2023 with NVIDIA's driver.
FIRST_WITH_NVIDIA = 20240924


def is_with_nvidia(alias: str) -> bool:
    """Return whether EKS has images with NVIDIA's driver of this version, so GPU nodes start."""
    family, _, version = alias.partition("@v")
    return family == "al2023" and version.isdecimal() and int(version) >= FIRST_WITH_NVIDIA


def test_nodes_of_karpenter_have_an_image_with_the_driver() -> None:
    found = yaml.safe_load((DEPLOY / "optional/karpenter/node-class.yaml").read_text())
    (term,) = found["spec"]["amiSelectorTerms"]
    assert is_with_nvidia(term["alias"])
    for alias in ("al2023@v20240807", "al2023@latest", "al2@v20250101", "al2023@v2024"):
        assert not is_with_nvidia(alias)


def test_on_eks_the_driver_is_that_of_the_image() -> None:
    found = yaml.safe_load((DEPLOY / "optional/gpu-operator/eks.yaml").read_text())
    assert found == {"driver": {"enabled": False}, "toolkit": {"enabled": False}}


def test_the_component_for_gpus_changes_the_server_of_tensorflow_serving() -> None:
    component = yaml.safe_load((DEPLOY / "serving/gpu/kustomization.yaml").read_text())
    base = yaml.safe_load((DEPLOY / "serving/tensorflow-serving/kustomization.yaml").read_text())
    file = DEPLOY / "serving/tensorflow-serving/deployment.yaml"
    deployment = yaml.safe_load(file.read_text())
    (patch,), (image,) = component["patches"], component["images"]
    assert patch["target"] == {"kind": "Deployment", "name": deployment["metadata"]["name"]}
    change = yaml.safe_load(patch["patch"])
    pod = change["spec"]["template"]["spec"]
    assert not list(lost_fields(ApiClient(), pod, "V1PodSpec"))
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    (changed,) = pod["containers"]
    assert changed["name"] == server["name"]
    assert changed["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    original = {it["newName"]: it["newTag"] for it in base["images"]}
    assert image["newTag"] == f"{original[image['name']]}-gpu"


def contexts_of_pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each manifest with a pod, and the pod's security context."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for part in _nested(list(yaml.safe_load_all(path.read_text()))):
            if "containers" in part and "securityContext" in part:
                yield path.relative_to(DEPLOY).as_posix(), part["securityContext"]


def test_the_cluster_may_choose_the_user_of_our_images() -> None:
    """OpenShift's SCC restricted-v2 refuses a fixed user."""
    contexts = list(contexts_of_pods())
    assert len(contexts) == 7 and all(context["runAsNonRoot"] for _, context in contexts)
    users = {file: context["runAsUser"] for file, context in contexts if "runAsUser" in context}
    assert users == {"serving/tensorflow-serving/deployment.yaml": 1000}
    # With a name, Kubernetes could not tell that the user is not root.
    for path in (DEPLOY.parent / "images").glob("*.Containerfile"):
        assert re.findall(r"^USER (.+)", path.read_text(), re.MULTILINE) == ["1000:0"]


def test_the_documented_patch_removes_the_user_of_tensorflow_serving() -> None:
    page = (DEPLOY.parent / "docs/serving.md").read_text()
    (block,) = re.findall(r"^```yaml\n(patches:.+?)^```", page, re.MULTILINE | re.DOTALL)
    (patch,) = yaml.safe_load(block)["patches"]
    (change,) = yaml.safe_load(patch["patch"])
    part = yaml.safe_load((DEPLOY / "serving/tensorflow-serving/deployment.yaml").read_text())
    assert patch["target"] == {"kind": part["kind"], "name": part["metadata"]["name"]}
    assert change["op"] == "remove"
    for key in change["path"].strip("/").split("/"):
        part = part[key]
    assert part == 1000


@pytest.mark.parametrize(
    ("file", "pod"),
    [
        ("base/deployment.yaml", ("spec", "template")),
        ("kserve/inference-service.yaml", ()),  # KServe copies its labels to the pods
    ],
)
def test_prometheus_scrapes_each_server_of_ours(file: str, pod: tuple[str, ...]) -> None:
    monitor = yaml.safe_load((DEPLOY / "optional/monitoring/pod-monitor.yaml").read_text())["spec"]
    server = yaml.safe_load((DEPLOY / "serving" / file).read_text())
    labels = server
    for key in (*pod, "metadata", "labels"):
        labels = labels[key]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    endpoints = {endpoint["port"]: endpoint["path"] for endpoint in monitor["podMetricsEndpoints"]}
    ((port,),) = (part["ports"] for part in _nested(server) if "ports" in part)
    assert endpoints[port["name"]] == "/metrics"


def test_the_example_evaluates_on_nodes_with_a_taint() -> None:
    """Neither `pod.all` nor Kueue adds a toleration to evaluate's pod."""
    page = (DEPLOY.parent / "docs/platform.md").read_text()
    (block,) = re.findall(r"^```json\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    options = parse(PodOptions, "pod", json.loads(block)).evaluate
    assert options.gpus == 1 and options.gpu_resource == "nvidia.com/gpu.shared"
    pool = yaml.safe_load((DEPLOY / "optional/karpenter/training.yaml").read_text())
    (taint,) = pool["spec"]["template"]["spec"]["taints"]
    assert options.tolerations and options.node_selector
    (toleration,) = options.tolerations
    assert (toleration.key, toleration.effect) == (taint["key"], taint["effect"])
    assert toleration.operator == "Exists"
    slices = (DEPLOY / "optional/gpu-operator/time-slicing.yaml").read_text()
    (label,) = options.node_selector.items()
    assert "=".join(label) in slices


def test_the_nightly_comparison_has_no_proxy_that_outlives_it() -> None:
    """Istio would add one in the namespace of a profile."""
    job = yaml.safe_load((DEPLOY / "serving/monitor/cron-job.yaml").read_text())["spec"]
    labels = job["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert labels == {"sidecar.istio.io/inject": "false"}
