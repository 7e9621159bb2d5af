"""The training-operator as a process of this host, under the rights of its own ServiceAccount."""

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from kubernetes import client

from kfp_tfjob.options.container_images import TOOLS
from tests.cluster.control_plane import SERVER
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, answers

NAMESPACE = "kubeflow"
_NAME = "training-operator"
_WEBHOOK_PORT = 9443
_HEALTH = "127.0.0.1:18081"
# What the workers of a PyTorchJob do first: the default is an image of a registry, with nslookup.
_INIT_CONTAINER = f"""
- name: init-pytorch
  image: {TOOLS}
  command: ["sh", "-c", "until getent hosts {{{{.MasterAddr}}}}; do sleep 1; done"]
"""
# Constants of the operator.
_SECRET = "training-operator-webhook-cert"
_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")


def manifests(rendered: Path) -> str:
    """Return the operator's manifests for an operator outside the cluster.

    Returns:
        JSON without the Deployment, and with a Service that leads to this host.
    """
    shipped = json.loads(rendered.read_text())
    kept = [manifest for manifest in shipped["items"] if manifest["kind"] != "Deployment"]
    for manifest in kept:
        if manifest["kind"] == "Service":
            del manifest["spec"]["selector"]
            ports = [
                {"name": port["name"], "port": port["targetPort"]}
                for port in manifest["spec"]["ports"]
                if port["targetPort"] == _WEBHOOK_PORT
            ]
    kept.append(
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": _NAME, "namespace": NAMESPACE},
            "subsets": [{"addresses": [{"ip": BRIDGE_ADDRESS}], "ports": ports}],
        }
    )
    return json.dumps(shipped | {"items": kept})


class TrainingOperator:
    """The operator; its manifests must have been applied.

    Args:
        api: Returns an administrator's client, which reads the certificate the operator makes.
    """

    def __init__(
        self,
        programs: Mapping[str, Path],
        state: Path,
        logs: Path,
        authority: Authority,
        api: Callable[[], client.ApiClient],
    ) -> None:
        account = f"/CN=system:serviceaccount:{NAMESPACE}:{_NAME}"
        kubeconfig = authority.kubeconfig(_NAME, account, SERVER)
        self._api = api
        template = state / "init-pytorch.yaml"
        template.write_text(_INIT_CONTAINER)
        self._process = Process(
            _NAME,
            [
                programs["training-operator"],
                "--metrics-bind-address=0",
                f"--health-probe-bind-address={_HEALTH}",
                f"--webhook-server-port={_WEBHOOK_PORT}",
                "--enable-scheme=tfjob",
                "--enable-scheme=pytorchjob",
                f"--pytorch-init-container-template-file={template}",
            ],
            logs,
            state,
            # Its webhook server looks for the certificates below TMPDIR, its rotator below /tmp.
            {"KUBECONFIG": str(kubeconfig), "TMPDIR": "/tmp"},
        )

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(self._mount_certificates)
        self._process.wait_until(lambda: answers(f"http://{_HEALTH}/readyz"))

    def stop(self) -> None:
        """End it: TFJobs are neither admitted nor reconciled until it is started again."""
        self._process.stop()

    def _mount_certificates(self) -> bool:
        """Do what the volume of the Deployment does with the Secret the operator fills."""
        data = client.CoreV1Api(self._api()).read_namespaced_secret(_SECRET, NAMESPACE).data or {}
        if not {"tls.crt", "tls.key", "ca.crt"} <= set(data):
            return False
        _CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name, value in data.items():
            (_CERTIFICATES / name).write_bytes(base64.b64decode(value))
        return True


def remove_certificates() -> None:
    shutil.rmtree(_CERTIFICATES.parent, ignore_errors=True)
