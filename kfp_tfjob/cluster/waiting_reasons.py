"""Finds what a job's pods wait for, from their status and their events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import container_statuses, replica_of, replicas

_PULL = frozenset(
    "ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull RegistryUnavailable".split()
)
_CONFIGURATION = frozenset(
    "CreateContainerConfigError CreateContainerError RunContainerError".split()
)
# Of the training operator; of the Job controller, and of JobSet.
_NOT_MADE = frozenset(
    "FailedCreatePod FailedCreateService"
    " FailedCreate JobCreationFailed HeadlessServiceCreationFailed".split()
)
_WORKLOAD = re.compile(r"Created Workload: [^/\s]+/(\S+)")
_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: \S+, limited: \S+")
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
# The rest of the scheduler's message is about pods that it could evict for this one.
_PREEMPTION = re.compile(r"[.,]? (?:no new claims to deallocate, )?preemption: ")
# Messages of the kubelet; the local back end uses the same.
_NO_SECRET = re.compile(r'secret "([^"]+)" not found')
_NO_KEY = re.compile(r"couldn't find key (\S+) in Secret (?:\S+/)?(\S+)")


@dataclass(frozen=True)
class MissingSecret:
    """A Secret that a container needs, and that does not exist or lacks a key."""

    name: str
    key: str
    replica: str
    said: str

    def __str__(self) -> str:
        """Return what is missing, as a sentence without a full stop."""
        what = f"Secret {self.name} " + (f"has no key {self.key}" if self.key else "does not exist")
        return f"{what}; {self.replica} needs it: {self.said}"


def has_begun(pod: Object) -> bool:
    """Return whether a container of a pod runs or has run."""
    status = pod["status"]
    if status.get("phase") != "Pending":
        return True
    states = [item.get("state") or {} for item in status.get("initContainerStatuses") or []]
    return any("running" in state or "terminated" in state for state in states)


def is_placed(pod: Object) -> bool:
    """Return whether a pod has a node, and so holds its resources."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def wanted(job: Object) -> int:
    """Return how many pods a job has."""
    return sum(item.count for item in replicas(job))


def scheduler_says(pod: Object) -> list[str]:
    """Return the scheduler's reason why a pod has no node; nothing once it has one."""
    return [
        _PREEMPTION.split(str(item.get("message") or item.get("reason")))[0]
        for item in pod["status"].get("conditions") or []
        if item["type"] == "PodScheduled" and item["status"] == "False"
    ]


def insufficient(message: str) -> list[str]:
    """Return the resources that a message of the scheduler names as missing."""
    return _INSUFFICIENT.findall(message)


def unscheduled(pods: Iterable[Object]) -> list[str]:
    """Return the scheduler's reason for each pod without a node."""
    return [f"{replica_of(pod)}: {said}" for pod in pods for said in scheduler_says(pod)]


def image_pull(pods: Iterable[Object]) -> list[str]:
    """Return the node's message for each container without its image."""
    return [f"{name} of {replica_of(pod)}: {said}" for pod, name, said in _waiting(pods, _PULL)]


def misconfigured(pods: Iterable[Object]) -> list[str]:
    """Return the node's message for each container that cannot be created."""
    found = _waiting(pods, _CONFIGURATION)
    return [f"{name} of {replica_of(pod)}: {said}" for pod, name, said in found]


def not_made(events: Iterable[Object]) -> list[str]:
    """Return why pods could not be created, for example a quota, newest last."""
    return [str(item.get("message")) for item in events if item.get("reason") in _NOT_MADE]


def exceeded_quotas(events: Iterable[Object]) -> Iterator[tuple[str, list[str]]]:
    """Yield the quotas that keep pods from being created, each with its resources."""
    for text in not_made(events):
        if found := _EXCEEDED.search(text):
            yield found[1], [item.partition("=")[0] for item in found[2].split(",")]


def workloads(events: Iterable[Object]) -> list[str]:
    """Return the names of what Kueue has created for a job: it tells why the job waits."""
    said = (_WORKLOAD.search(str(item.get("message"))) for item in events)
    return [found[1] for found in said if found]


def queue_says(events: Iterable[Object]) -> list[str]:
    """Return why Kueue has not admitted a suspended job, newest last."""
    return [
        str(item.get("message"))
        for item in events
        if (item.get("involvedObject") or {}).get("kind") == "Workload"
        and item.get("type") == "Warning"
    ]


def forbidden(events: Iterable[Object]) -> list[str]:
    """Return why pods can never be created; a quota may free up and does not count."""
    return [
        said for said in not_made(events) if "forbidden" in said and "exceeded quota" not in said
    ]


def missing_secrets(pods: Iterable[Object]) -> list[MissingSecret]:
    """Return the missing Secrets that the containers of pods wait for."""
    waits = _waiting(pods, _CONFIGURATION)
    return [
        MissingSecret(*missing, replica_of(pod), said)
        for pod, _, said in waits
        if (missing := secret_in(said))
    ]


def secret_in(said: str) -> tuple[str, str] | None:
    """Return the Secret and the key that a message reports missing; no key for a whole Secret."""
    if found := _NO_KEY.search(said):
        return found[2], found[1]
    if found := _NO_SECRET.search(said):
        return found[1], ""
    return None


def about(event: Object, pod: Object) -> bool:
    """Return whether an event is about a pod."""
    return (event.get("involvedObject") or {}).get("name") == pod["metadata"]["name"]


def reason(pod: Object, events: Iterable[Object] = ()) -> str:
    """Return the cluster's message why a pod has not started; nothing while it is starting."""
    if said := scheduler_says(pod):
        return said[0]
    for _, _, text in _waiting([pod], _PULL | _CONFIGURATION):
        return text
    warnings = [item for item in events if item.get("type") == "Warning" and about(item, pod)]
    return _PREEMPTION.split(str(warnings[-1].get("message")))[0] if warnings else ""


def _waiting(pods: Iterable[Object], reasons: frozenset[str]) -> Iterator[tuple[Object, str, str]]:
    """Yield pod, container and message for each container that waits for one of the reasons."""
    for pod in pods:
        for item in container_statuses(pod):
            state = (item.get("state") or {}).get("waiting") or {}
            if state.get("reason") in reasons:
                said = state.get("message") or "no message"
                yield pod, item["name"], f"{state['reason']}: {said}"
