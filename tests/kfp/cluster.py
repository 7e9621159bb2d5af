"""The cluster of the kubeconfig: the Workflow, the pods and the jobs of a run.

This asks with Kubernetes' own client, so that the project's is not its own witness.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from kubernetes import client, config

STEP, JOB = "pipeline/runid", "kfp-tfjob/run"  # labels: of the pods of steps, of those of jobs
_NODE_NAME = "workflows.argoproj.io/node-name"
_INSTALLATION = "kubeflow"
_OVER = ("Succeeded", "Completed", "Failed")  # phases of pods, conditions of jobs
# API group, version and plural of the kinds of jobs that `auto` chooses from.
_KINDS = (("kubeflow.org", "v1", "tfjobs"), ("jobset.x-k8s.io", "v1alpha2", "jobsets"))
_SECONDS = (5, 30)  # a number alone would not count

Object = Mapping[str, Any]


@cache
def connect() -> client.ApiClient:
    return config.new_client_from_config()


@cache
def namespace() -> str:
    """Return the namespace of the runs, as `doctor` and `install` choose it."""
    context = config.list_kube_config_contexts()[1]["context"].get("namespace") or "default"
    return _INSTALLATION if context == "default" else context


def pods(run_id: str, label: str = STEP) -> list[Object]:
    """Return the pods of a run's steps, or with JOB those of its jobs, as plain objects."""
    found = client.CoreV1Api(connect()).list_namespaced_pod(
        namespace(), label_selector=f"{label}={run_id}", _request_timeout=_SECONDS
    )
    return connect().sanitize_for_serialization(found)["items"]


def alive(run_id: str) -> list[str]:
    """Return the names of the run's pods and jobs that are not over."""
    found = [*pods(run_id), *pods(run_id, JOB)]
    names = [it["metadata"]["name"] for it in found if it["status"]["phase"] not in _OVER]
    return names + [it["metadata"]["name"] for it in jobs(run_id) if not _ended(it)]


def _ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(it["type"] in _OVER and it["status"] == "True" for it in conditions)


def jobs(run_id: str) -> list[Object]:
    return [job for kind in kinds() for job in _listed(*kind, f"{JOB}={run_id}")]


@cache
def kinds() -> list[tuple[str, str, str]]:
    """Return the API group, version and plural of each kind of job that the cluster has."""
    return [kind for kind in _KINDS if _is_served(*kind)]


def _is_served(group: str, version: str, plural: str) -> bool:
    api = client.CustomObjectsApi(connect())
    try:
        served = api.get_api_resources(group, version, _request_timeout=_SECONDS)
    except client.ApiException as error:
        if error.status == 404:  # no kind of this group is there
            return False
        raise
    return any(it.name == plural for it in served.resources)


def workflow(run_id: str) -> Object:
    (found,) = _listed("argoproj.io", "v1alpha1", "workflows", f"{STEP}={run_id}")
    return found


def _listed(group: str, version: str, plural: str, selector: str) -> list[Object]:
    return client.CustomObjectsApi(connect()).list_namespaced_custom_object(
        group,
        version,
        namespace(),
        plural,
        label_selector=selector,
        _request_timeout=_SECONDS,
    )["items"]


def node(pod: Object) -> str:
    """Return the last part of a step pod's place in the Workflow that names its task.

    For example, `preflight-driver`, or `preflight` for the pod of the step itself.
    """
    path = (pod["metadata"].get("annotations") or {}).get(_NODE_NAME, "").split(".")
    plain = [part.partition("(")[0] for part in path]
    return plain[-2] if plain[-1] == "executor" and len(plain) > 1 else plain[-1]


def pod_of_step(run_id: str, step: str) -> Object | None:
    name = step.replace("_", "-")
    found = (it for it in pods(run_id) if node(it) == name)
    return next((it for it in found if it["status"]["phase"] == "Running"), None)


def chief(run_id: str) -> Object | None:
    found = (it for it in pods(run_id, JOB) if "-chief-" in it["metadata"]["name"])
    return next((it for it in found if it["status"]["phase"] == "Running"), None)


def delete_pod(name: str) -> None:
    """Delete a pod as a drain does: with the grace period of its own."""
    client.CoreV1Api(connect()).delete_namespaced_pod(name, namespace(), _request_timeout=_SECONDS)


@contextlib.contextmanager
def extended_resource(name: str, count: int) -> Iterator[str]:
    """Give a node some of a resource that only the scheduler believes in; yield the node's name.

    Raises:
        ApiException: 403 if the kubeconfig may not list nodes or change their status.
    """
    api = client.CoreV1Api(connect())
    nodes = api.list_node(_request_timeout=_SECONDS).items
    node, *_ = (candidate.metadata.name for candidate in nodes if _takes_pods(candidate))
    field = name.replace("/", "~1")
    paths = [f"/status/{part}/{field}" for part in ("capacity", "allocatable")]
    added = [{"op": "add", "path": path, "value": str(count)} for path in paths]
    api.patch_node_status(node, added, _request_timeout=_SECONDS)
    try:
        yield node
    finally:
        removed = [{"op": "remove", "path": path} for path in paths]
        api.patch_node_status(node, removed, _request_timeout=_SECONDS)


def _takes_pods(node: client.V1Node) -> bool:
    states = {state.type: state.status for state in node.status.conditions or []}
    return states.get("Ready") == "True" and not node.spec.unschedulable and not node.spec.taints


def copy_secret(name: str, copy: str, label: tuple[str, str]) -> None:
    """Create a Secret with the content of another one, and a label to delete it by."""
    api = client.CoreV1Api(connect())
    known = api.read_namespaced_secret(name, namespace(), _request_timeout=_SECONDS)
    metadata = client.V1ObjectMeta(name=copy, labels=dict([label]))
    body = client.V1Secret(metadata=metadata, data=known.data)
    api.create_namespaced_secret(namespace(), body, _request_timeout=_SECONDS)


def delete_secrets(label: tuple[str, str]) -> None:
    client.CoreV1Api(connect()).delete_collection_namespaced_secret(
        namespace(), label_selector="=".join(label), _request_timeout=_SECONDS
    )
