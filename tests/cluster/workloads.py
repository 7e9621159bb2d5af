"""Pods of small Python containers, under the restricted Pod Security level."""

from collections.abc import Mapping

from kfp_tfjob.options.container_images import TRAINER

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(
    code: str, gpus: Mapping[str, int] | None = None, image: str = TRAINER
) -> dict[str, object]:
    """Return a container that runs Python code, with GPUs by the names of their resources."""
    resources = {"cpu": "50m", "memory": "64Mi"}
    resources |= {resource: str(count) for resource, count in (gpus or {}).items()}
    return {
        "name": "tensorflow",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", code],
        "resources": {"requests": resources, "limits": resources | {"cpu": "2", "memory": "1Gi"}},
        "securityContext": RESTRICTED,
    }


def template(main: Mapping[str, object], **spec: object) -> dict[str, object]:
    """Return a pod template with one container; `spec` adds fields to the pod's spec."""
    return {"spec": {"containers": [main], "restartPolicy": "Never"} | spec}


def pod(name: str, main: Mapping[str, object], **spec: object) -> dict[str, object]:
    """Return a pod with one container; `spec` adds fields to its spec."""
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return kind | template(main, **spec)
