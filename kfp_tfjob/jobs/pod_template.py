"""Builds the parts that every pod of a job has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from kfp_tfjob.jobs.labels import POD_ANNOTATIONS
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.options.pod import PodSettings, SecretKey
from kfp_tfjob.storage.credentials import MOUNT

STORAGE = "storage"  # the volume with the Secret of the store


def spec_hash(manifest: Object) -> str:
    """Return the SHA-256 of a job's spec, which does not depend on its name and owner."""
    text = json.dumps(manifest["spec"], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def pod_template(settings: PodSettings, labels: Mapping[str, str], spec: Object) -> Object:
    """Return a pod template that Pod Security `restricted` admits, without a token of the cluster.

    Args:
        settings: With their defaults.
        labels: Those that this project needs; they replace the user's.
        spec: What belongs to this pod alone: containers, volumes, deadline, grace period.
    """
    user = settings.run_as_user
    pod: Object = {
        "affinity": settings.affinity.model_dump(exclude_none=True) if settings.affinity else None,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": settings.image_pull_secret}]
        if settings.image_pull_secret
        else None,
        "nodeSelector": settings.node_selector,
        "priorityClassName": settings.priority_class,
        "schedulerName": settings.scheduler,
        "securityContext": {
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "runAsGroup": user,
            "runAsNonRoot": True,
            "runAsUser": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "serviceAccountName": settings.service_account,
        "tolerations": [item.model_dump(exclude_none=True) for item in settings.tolerations]
        if settings.tolerations
        else None,
        **spec,
    }
    return {
        "metadata": {
            "annotations": POD_ANNOTATIONS | (settings.annotations or {}),
            "labels": {"sidecar.istio.io/inject": "false", **(settings.labels or {}), **labels},
        },
        "spec": {key: value for key, value in sorted(pod.items()) if value is not None},
    }


def container(
    name: str,
    image: str,
    resources: Mapping[str, str | None],
    environment: Sequence[Object],
    mounts: Sequence[Object],
) -> Object:
    """Return a container with equal requests and limits, and with the Secret of the store."""
    secret = {"name": STORAGE, "mountPath": str(MOUNT), "readOnly": True}
    return {
        "name": name,
        "image": image,
        "env": list(environment),
        "resources": {"limits": dict(resources), "requests": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [*mounts, secret],
    }


def storage_volume(secret: str) -> Object:
    """Return the volume with the Secret of the store.

    Without `optional`, the pod would wait for a missing Secret without an error.
    """
    return {"name": STORAGE, "secret": {"secretName": secret, "optional": True}}


def variables(values: Mapping[str, str]) -> list[Object]:
    """Return variables with these values as they are; empty ones are left out."""
    return [
        # Kubernetes expands $(NAME), and $$ is a literal dollar.
        {"name": name, "value": value.replace("$", "$$")}
        for name, value in values.items()
        if value
    ]


def of_user(settings: PodSettings) -> list[Object]:
    """Return the variables that the user sets."""
    return [_variable(name, value) for name, value in (settings.env or {}).items()]


def once(environment: Sequence[Object]) -> list[Object]:
    """Return the last of the variables of each name: a name must not appear twice."""
    return list({item["name"]: item for item in environment}.values())


def _variable(name: str, value: str | SecretKey) -> Object:
    if isinstance(value, str):
        return {"name": name, "value": value}
    # Not optional: the program must not start without it, and the launcher reports it missing.
    reference = {"name": value.secret, "key": value.key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
