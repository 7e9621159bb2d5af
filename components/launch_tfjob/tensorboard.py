"""What Kubeflow Pipelines shows of a training besides the curves: a button that opens TensorBoard.

The page of a step looks for an artifact `mlpipeline_ui_metadata`; its controller then starts a pod
made of the template in it, with the name of the image and the arguments of `tensorboard` put in.
"""

from __future__ import annotations

import json
from typing import Any

from components import images
from components.launch_tfjob.manifest import keys_of_the_store
from components.launch_tfjob.spec import JobSpec
from storage.address import S3Address

_RESOURCES = {
    "requests": {"cpu": "250m", "memory": "1Gi"},
    "limits": {"cpu": "1", "memory": "2Gi"},
}


def ui_metadata(spec: JobSpec, logs: S3Address) -> str:
    """Return the artifact as JSON.

    Args:
        spec: The job; its Secret is the viewer's too.
        logs: What the chief wrote for TensorBoard.
    """
    viewer = {
        "type": "tensorboard",
        "source": str(logs),
        "image": images.TRAINER,  # train_image may be the user's own, without TensorBoard
        "pod_template_spec": _template(spec),
    }
    return json.dumps({"version": 1, "outputs": [viewer]})


def _template(spec: JobSpec) -> dict[str, Any]:
    settings = spec.pod.of("chief")
    places = {"AWS_ENDPOINT_URL": spec.storage_endpoint, "AWS_REGION": spec.storage_region}
    container = {
        "command": ["python3", "-m", "trainer.viewer"],
        "env": [
            *({"name": name, "value": value} for name, value in places.items() if value),
            *keys_of_the_store(spec),
            {"name": "HOME", "value": "/tmp"},
        ],
        "resources": _RESOURCES,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    if settings.image_pull_secret:
        pod["imagePullSecrets"] = [{"name": settings.image_pull_secret}]
    return {"spec": pod}
