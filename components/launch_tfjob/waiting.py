"""What the pods of a job that does not run are waiting for, as the cluster shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from components.launch_tfjob.verdict import condition, replica_of

_PULL = frozenset(
    "ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull RegistryUnavailable".split()
)
_CONFIGURATION = frozenset(
    "CreateContainerConfigError CreateContainerError RunContainerError".split()
)


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Tell whether a queue holds the job back."""
    return bool(job["spec"]["runPolicy"].get("suspend")) or condition(job, "Suspended") is not None


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Tell whether a container of a pod runs or has run."""
    status = pod["status"]
    if status.get("phase") != "Pending":
        return True
    states = [item.get("state") or {} for item in status.get("initContainerStatuses") or []]
    return any("running" in state or "terminated" in state for state in states)


def is_placed(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod has a node, and so holds what it asked for."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def wanted(job: Mapping[str, Any]) -> int:
    """Return how many pods a job is made of."""
    return sum(int(item["replicas"]) for item in job["spec"]["tfReplicaSpecs"].values())


def unscheduled(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return for each pod without a node which resource or rule stands in the way."""
    found = []
    for pod in pods:
        for item in pod["status"].get("conditions") or []:
            if item["type"] == "PodScheduled" and item["status"] == "False":
                found.append(f"{replica_of(pod)}: {item.get('message') or item.get('reason')}")
    return found


def image_pull(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return for each container without its image what the node says."""
    return list(_waiting(pods, _PULL))


def misconfigured(pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return for each container that cannot be made what the node says."""
    return list(_waiting(pods, _CONFIGURATION))


def not_made(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why pods could not be made, for instance a quota, newest last."""
    return [str(item.get("message")) for item in events if item.get("reason") == "FailedCreatePod"]


def _waiting(pods: Iterable[Mapping[str, Any]], reasons: frozenset[str]) -> Iterator[str]:
    for pod in pods:
        status = pod["status"]
        for item in (
            *(status.get("initContainerStatuses") or []),
            *(status.get("containerStatuses") or []),
        ):
            state = (item.get("state") or {}).get("waiting") or {}
            if state.get("reason") in reasons:
                said = state.get("message") or "no message"
                yield f"{item['name']} of {replica_of(pod)}: {state['reason']}: {said}"
