"""Reads the status of jobs and pods, as Kubernetes and the operators write it.

TFJob, PyTorchJob and JobSet use different labels and conditions for the same facts. `JobKind` knows
them, and these functions ask the kind of the object at hand. Called wherever a job is watched,
limited, judged or stopped, for example by `time_limits.py` and `follower.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from .kind import CHIEF, Replica
from .kinds import kind_of, kind_of_pod
from .labels import CANCEL_GRACE_ANNOTATION
from .objects import Object


def role_of(pod: Object) -> str:
    """Return the role of a pod, for example `worker`."""
    return kind_of_pod(pod).role_of(pod["metadata"]["labels"])


def replica_of(pod: Object) -> str:
    """Return the short name of a pod, for example `chief-0`."""
    return f"{role_of(pod)}-{pod['metadata']['labels'][kind_of_pod(pod).index_label]}"


def newest_pods(pods: Iterable[Object]) -> list[Object]:
    """Return the newest pod of each replica.

    A JobSet that a queue stops and resumes gives its replicas pods with new names. The old ones do
    not show the job's state any more.
    """
    by_age = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    return list({replica_of(pod): pod for pod in by_age}.values())


def is_chief(pod: Object) -> bool:
    """Return whether a pod is the chief, which stores the output, and ends the job when it ends."""
    return role_of(pod) == CHIEF


def replicas(job: Object) -> list[Replica]:
    """Return the roles of a job with their pod templates."""
    return kind_of(job).replicas(job)


def job_condition(job: Object, state: str) -> Object | None:
    """Return the true condition for a state of a job, or None."""
    return true_condition(job, kind_of(job).conditions[state])


def is_over(job: Object) -> bool:
    """Return whether the operator has decided how the job ended; it decides only once."""
    return any(job_condition(job, state) is not None for state in ("succeeded", "failed"))


def is_suspended(job: Object) -> bool:
    """Return whether a queue holds a job back."""
    return kind_of(job).suspends(job) or job_condition(job, "suspended") is not None


def cancel_grace(job: Object, otherwise: int) -> int:
    """Return the seconds that the chief and its sidecar get to stop when the run ends."""
    annotation = (job["metadata"].get("annotations") or {}).get(CANCEL_GRACE_ANNOTATION, "")
    return int(annotation) if annotation.isdecimal() else otherwise


def is_being_deleted(item: Object) -> bool:
    """Return whether the deletion of a job or pod was requested."""
    return bool(item["metadata"].get("deletionTimestamp"))


def on_lost_node(pod: Object) -> bool:
    """Return whether the pod's node does not respond, so the pod will not go away either."""
    disruption = true_condition(pod, "DisruptionTarget") or {}
    lost = disruption.get("reason") == "DeletionByTaintManager"
    return lost or pod["status"].get("reason") == "NodeLost"


def container_statuses(pod: Object) -> list[Object]:
    """Return the status of every container of a pod, init containers first."""
    status = pod.get("status") or {}
    names = ("initContainerStatuses", "containerStatuses")
    return [item for name in names for item in status.get(name) or []]


def true_condition(item: Object, kind: str) -> Object | None:
    """Return the condition of this type on a job or pod if it is true, or None."""
    for condition in (item.get("status") or {}).get("conditions") or []:
        if condition["type"] == kind and condition["status"] == "True":
            return condition
    return None
