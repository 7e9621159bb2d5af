"""What the status of a job or pod says, as Kubernetes and the training operator write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LABEL = "training.kubeflow.org/"


def role_of(pod: Mapping[str, Any]) -> str:
    """Return the role of a pod, for instance `worker`."""
    return str(pod["metadata"]["labels"][_LABEL + "replica-type"])


def replica_of(pod: Mapping[str, Any]) -> str:
    """Return the short name of a pod, for instance `chief-0`."""
    return f"{role_of(pod)}-{pod['metadata']['labels'][_LABEL + 'replica-index']}"


def is_chief(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod is the one whose end decides how the job ends."""
    return replica_of(pod) == "chief-0"


def condition(job: Mapping[str, Any], kind: str) -> str | None:
    """Return the message of a condition that is true, or None; their order means nothing."""
    found = true_condition(job, kind)
    return None if found is None else str(found.get("message", ""))


def is_over(job: Mapping[str, Any]) -> bool:
    """Tell whether the operator has decided; it never does so twice."""
    return any(condition(job, kind) is not None for kind in ("Succeeded", "Failed"))


def is_being_deleted(item: Mapping[str, Any]) -> bool:
    """Tell whether somebody has asked for the deletion of a job or pod."""
    return bool(item["metadata"].get("deletionTimestamp"))


def on_lost_node(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod's node does not answer, so that the pod will not go away either."""
    disruption = true_condition(pod, "DisruptionTarget") or {}
    lost = disruption.get("reason") == "DeletionByTaintManager"
    return lost or pod["status"].get("reason") == "NodeLost"


def true_condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return a condition of a job or pod that is true, or None."""
    for found in (item.get("status") or {}).get("conditions") or []:
        if found["type"] == kind and found["status"] == "True":
            return found
    return None
