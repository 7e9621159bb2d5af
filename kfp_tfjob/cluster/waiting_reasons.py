"""Explains why a job's pods wait, from their status and their events.

Kubernetes does not report this in one field. The scheduler writes a condition into the pod's
status, the kubelet a waiting state into a container's, and controllers, quotas and queues report in
events.
Called by the launcher's limits, its log and its verdicts, and by the remedies of preflight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import container_statuses, replica_of, replicas

_PULL = frozenset(
    "ErrImagePull ImagePullBackOff InvalidImageName ErrImageNeverPull RegistryUnavailable".split()
)
_CONFIGURATION = frozenset(
    "CreateContainerConfigError CreateContainerError RunContainerError".split()
)
# Events of the training operator, and of the Job controller and JobSet.
_NOT_MADE = frozenset(
    "FailedCreatePod FailedCreateService"
    " FailedCreate JobCreationFailed HeadlessServiceCreationFailed".split()
)
_WORKLOAD = re.compile(r"Created Workload: [^/\s]+/(\S+)")
_EXCEEDED = re.compile(r"exceeded quota: (\S+), requested: (\S+), used: \S+, limited: \S+")
_INSUFFICIENT = re.compile(r"Insufficient ([\w./-]*\w)")
# The end of the scheduler's message is about pods that it could evict for this one.
_PREEMPTION = re.compile(r"[.,]? (?:no new claims to deallocate, )?preemption: ")
# Messages of the kubelet; the local back end uses the same.
_NO_SECRET = re.compile(r'secret "([^"]+)" not found')
_NO_KEY = re.compile(r"couldn't find key (\S+) in Secret (?:\S+/)?(\S+)")
_NO_CONFIG_MAP = re.compile(
    r'configmap "([^"]+)" not found|couldn\'t find key \S+ in ConfigMap (?:\S+/)?(\S+)'
)
_TOLERATE = "tolerate the taints of more nodes with pod.all.tolerations in a new run"


@dataclass(frozen=True)
class MissingSecret:
    """A Secret that a container needs, and that does not exist or does not contain a key.

    Attributes:
        name: The Secret.
        key: The missing key; empty if the Secret does not exist.
        replica: The replica whose container waits.
        message: The kubelet's message.
    """

    name: str
    key: str
    replica: str
    message: str

    def __str__(self) -> str:
        """Return the problem as a sentence without a full stop."""
        problem = f"has no key {self.key}" if self.key else "does not exist"
        return f"Secret {self.name} {problem}; {self.replica} needs it: {self.message}"


def has_begun(pod: Object) -> bool:
    """Return whether any of a pod's containers runs or has run."""
    status = pod["status"]
    if status.get("phase") != "Pending":
        return True
    init_containers = status.get("initContainerStatuses") or []
    states = [container.get("state") or {} for container in init_containers]
    return any("running" in state or "terminated" in state for state in states)


def is_placed(pod: Object) -> bool:
    """Return whether a pod is assigned to a node, and so occupies its resources."""
    return bool((pod.get("spec") or {}).get("nodeName"))


def expected_pods(job: Object) -> int:
    """Return the number of pods that a job should have."""
    return sum(replica.count for replica in replicas(job))


def scheduler_says(pod: Object) -> list[str]:
    """Return the scheduler's reason why a pod is without a node; empty once it is placed."""
    return [
        _PREEMPTION.split(str(condition.get("message") or condition.get("reason")))[0]
        for condition in pod["status"].get("conditions") or []
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def insufficient(message: str) -> list[str]:
    """Return the resources that the scheduler's message names as insufficient."""
    return _INSUFFICIENT.findall(message)


def unscheduled(pods: Iterable[Object]) -> list[str]:
    """Return the scheduler's reason for each pod without a node."""
    return [f"{replica_of(pod)}: {message}" for pod in pods for message in scheduler_says(pod)]


def image_pull(pods: Iterable[Object]) -> list[str]:
    """Return the node's message for each container without its image."""
    return [
        f"{name} of {replica_of(pod)}: {message}" for pod, name, message in _waiting(pods, _PULL)
    ]


def misconfigured(pods: Iterable[Object]) -> list[str]:
    """Return the node's message for each container that cannot be created."""
    waiting = _waiting(pods, _CONFIGURATION)
    return [f"{name} of {replica_of(pod)}: {message}" for pod, name, message in waiting]


def not_made(events: Iterable[Object]) -> list[str]:
    """Return the messages why pods could not be created, for example a quota, newest last."""
    return [str(event.get("message")) for event in events if event.get("reason") in _NOT_MADE]


def exceeded_quotas(events: Iterable[Object]) -> Iterator[tuple[str, list[str]]]:
    """Yield the quotas that keep pods from being created, each with its resources."""
    for message in not_made(events):
        if match := _EXCEEDED.search(message):
            yield match[1], [request.partition("=")[0] for request in match[2].split(",")]


def workloads(events: Iterable[Object]) -> list[str]:
    """Return the names of the Workloads that Kueue has created for a job.

    The events of a Workload explain why its job waits.
    """
    matches = (_WORKLOAD.search(str(event.get("message"))) for event in events)
    return [match[1] for match in matches if match]


def queue_says(events: Iterable[Object]) -> list[str]:
    """Return Kueue's messages why a suspended job is not admitted, newest last."""
    return [
        str(event.get("message"))
        for event in events
        if (event.get("involvedObject") or {}).get("kind") == "Workload"
        and event.get("type") == "Warning"
    ]


def forbidden(events: Iterable[Object]) -> list[str]:
    """Return the messages why pods can never be created.

    An exceeded quota is not included, because it may become free.
    """
    return [
        message
        for message in not_made(events)
        if "forbidden" in message and "exceeded quota" not in message
    ]


def missing_secrets(pods: Sequence[Object], events: Sequence[Object] = ()) -> list[MissingSecret]:
    """Return the missing Secrets that the variables and volumes of pods wait for.

    Args:
        pods: The pods, whose statuses name the Secrets of variables.
        events: The pods' events, which name the Secrets of volumes.
    """
    waiting = [(pod, message) for pod, _, message in _waiting(pods, _CONFIGURATION)]
    waiting += [
        (pod, str(event.get("message")))
        for pod in pods
        if not has_begun(pod)
        for event in events
        if event.get("reason") == "FailedMount" and about(event, pod)
    ]
    return [
        MissingSecret(*missing, replica_of(pod), message)
        for pod, message in waiting
        if (missing := secret_in(message))
    ]


def secret_in(message: str) -> tuple[str, str] | None:
    """Return the Secret and the key that a message reports as missing; None if it reports none.

    The key is empty if the whole Secret is missing.
    """
    if match := _NO_KEY.search(message):
        return match[2], match[1]
    if match := _NO_SECRET.search(message):
        return match[1], ""
    return None


def config_map_in(message: str) -> str:
    """Return the ConfigMap that a message reports as missing, or as lacking a key; or empty."""
    match = _NO_CONFIG_MAP.search(message)
    return (match[1] or match[2]) if match else ""


def is_about_image(message: str) -> bool:
    """Return whether a message of `reason` is about an image that cannot be pulled."""
    return any(pull_reason in message for pull_reason in _PULL)


def remedy_for(waits: str) -> tuple[str, str]:
    """Return the remedy for waiting pods and its documentation, by the messages of Kubernetes."""
    if is_about_image(waits):
        return (
            "push the image to its registry, correct its name, or give the nodes access with"
            " pod.all.image_pull_secret or the imagePullSecrets of the service account; the pod"
            " then retries on its own"
        ), address_of("image_pull")
    if secret := secret_in(waits):
        name, key = secret
        task = f"add the key {key} to the Secret {name}" if key else f"create the Secret {name}"
        return f"{task}; the pod then retries on its own", address_of("secret-not-found")
    if config_map := config_map_in(waits):
        fix = (
            f"create the ConfigMap {config_map} with all keys that the pod uses; the pod then"
            " retries on its own"
        )
        return fix, address_of("config-map-not-found")
    free = "free the resources that it waits for"
    if "untolerated taint" in waits:
        free += f", {_TOLERATE}"
    return f"{free}, or cancel the run and request less", address_of("unschedulable")


def node_remedy(pods: Iterable[Object], events: Sequence[Object]) -> str:
    """Return the remedy for pods that have nodes but cannot start there; empty if none has one."""
    messages = [reason(pod, events) for pod in pods if is_placed(pod) and not has_begun(pod)]
    config_maps = sorted(set(filter(None, map(config_map_in, messages))))
    if config_maps:
        return f"create the ConfigMap {' and '.join(config_maps)} with all keys that the pods use"
    return "correct what keeps the pods from starting on their nodes" if any(messages) else ""


def about(event: Object, pod: Object) -> bool:
    """Return whether an event is about a pod."""
    return (event.get("involvedObject") or {}).get("name") == pod["metadata"]["name"]


def reason(pod: Object, events: Iterable[Object] = ()) -> str:
    """Return the cluster's message why a pod has not started; empty while it is starting."""
    if messages := scheduler_says(pod):
        return messages[0]
    for _, _, message in _waiting([pod], _PULL | _CONFIGURATION):
        return message
    warnings = [event for event in events if event.get("type") == "Warning" and about(event, pod)]
    return _PREEMPTION.split(str(warnings[-1].get("message")))[0] if warnings else ""


def _waiting(pods: Iterable[Object], reasons: frozenset[str]) -> Iterator[tuple[Object, str, str]]:
    """Yield pod, container and message for each container that waits for one of the reasons."""
    for pod in pods:
        for container in container_statuses(pod):
            state = (container.get("state") or {}).get("waiting") or {}
            if state.get("reason") in reasons:
                message = state.get("message") or "no message"
                yield pod, container["name"], f"{state['reason']}: {message}"
