"""Runs a step of the compiled pipeline as a pod, as the driver and launcher of KFP would.

The container is the specification's own: image, command, environment, resources, Secret volume and
user. Its executor input takes the place of {{$}}; what it leaves in /minio is printed by a sidecar
when it has ended, because it is on a node and there is no artifact store.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.options.container_images import TOOLS
from tests.cluster.access import Access
from tests.cluster.compiled import Task
from tests.cluster.processes import wait_until
from tests.cluster.workflows import Workflow
from tests.cluster.workloads import RESTRICTED

_SECONDS = 900  # of one step; only what hangs reaches it
# The scratch folders that the driver of Kubeflow Pipelines gives to `main`.
_SCRATCH = ("/minio", "/s3", "/gcs", "/.local", "/.cache", "/.config")
_COLLECT = """
import json, pathlib, signal, sys
def end(*_):
    root = pathlib.Path("/minio/artifacts")
    files = [path for path in root.rglob("*") if path.is_file()]
    print(json.dumps({str(path.relative_to(root)): path.read_text() for path in files}), flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class Ended:
    outputs: Mapping[str, Any]
    files: Mapping[str, str]
    log: str


@dataclass
class StepPods:
    """The pods of the steps of one run.

    Attributes:
        changes: Fields of the security context that a test adds to the specification's.
    """

    cluster: Access
    namespace: str
    account: str
    workflow: Workflow
    run_id: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)

    def start(self, task: Task) -> None:
        self.cluster.core.create_namespaced_pod(self.namespace, self.pod(task))

    def join(self, task: Task, phase: str = "Succeeded") -> Ended:
        """Wait until a step has ended, as `phase`; return what it left."""
        name = self.name(task)

        def read() -> Any:
            return self.cluster.core.read_namespaced_pod(name, self.namespace)

        def over() -> bool:
            return read().status.phase in ("Succeeded", "Failed")

        assert wait_until(over, _SECONDS), f"{name} is {read().status.phase}: {self.log(task)}"
        pod = read()
        log = self.log(task)
        assert pod.status.phase == phase, f"{name} is {pod.status.phase}: {log}"
        files = json.loads(self.log(task, "collect"))
        left = json.loads(files.get("executor_output.json", "{}"))
        self.ended[task.name] = Ended(left.get("parameterValues", {}), files, log)
        return self.ended[task.name]

    def name(self, task: Task) -> str:
        return f"{self.workflow.name}-{task.name}"

    def log(self, task: Task, container: str = "main") -> str:
        return self.cluster.log(self.namespace, self.name(task), container)

    def pod(self, task: Task) -> dict[str, Any]:
        container, secret = task.container, task.secret
        scratch = [(f"scratch-{i}", path) for i, path in enumerate(_SCRATCH)]
        mounts = [{"name": name, "mountPath": path} for name, path in scratch]
        context = task.settings.get("securityContext", {})
        security = RESTRICTED | {
            "runAsUser": int(context["runAsUser"]),
            "runAsNonRoot": context["runAsNonRoot"],
        }
        security |= self.changes
        if security.get("readOnlyRootFilesystem"):  # the program of a step is written below /tmp
            scratch.append(("tmp", "/tmp"))
            mounts.append({"name": "tmp", "mountPath": "/tmp"})
        own = {"name": "KFP_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        main = {
            "name": "main",
            "image": container["image"],
            "command": container["command"],
            "args": [
                json.dumps(task.executor_input) if word == "{{$}}" else word
                for word in container["args"]
            ],
            "env": [*container["env"], own],
            "resources": _resources(container["resources"]),
            "securityContext": security,
            "volumeMounts": [
                *mounts,
                {"name": "secret", "mountPath": secret["path"], "readOnly": True},
            ],
        }
        collect = {
            "name": "collect",
            "image": TOOLS,
            "command": ["python3", "-c", _COLLECT],
            "restartPolicy": "Always",
            "securityContext": security,
            "volumeMounts": mounts[:1],
        }
        reference = self.workflow.reference() | {"controller": True, "blockOwnerDeletion": True}
        source = {"secretName": secret["name"], "optional": secret["optional"]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name(task),
                "labels": {"pipeline/runid": self.run_id},
                "annotations": {"workflows.argoproj.io/node-id": self.name(task)},
                "ownerReferences": [reference],
            },
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": self.account,
                "initContainers": [collect],
                "containers": [main],
                "volumes": [
                    *({"name": name, "emptyDir": {}} for name, _ in scratch),
                    {"name": "secret", "secret": source},
                ],
            },
        }


def _resources(said: Mapping[str, Any]) -> dict[str, Any]:
    requests = {"cpu": said["resourceCpuRequest"], "memory": said["resourceMemoryRequest"]}
    limits = {"memory": said["resourceMemoryLimit"]}
    if "resourceCpuLimit" in said:
        limits["cpu"] = said["resourceCpuLimit"]
    return {"requests": requests, "limits": limits}
