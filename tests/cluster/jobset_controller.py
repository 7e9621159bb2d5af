"""The JobSet controller as a process of this host, under the rights of its own ServiceAccount."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.control_plane import SERVER
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.pki import Authority
from tests.cluster.processes import Process

NAMESPACE = "jobset-system"
_ACCOUNT = "jobset-controller-manager"
_WEBHOOK_PORT = 9444
_PROBE = "127.0.0.1:18083"


def manifests(rendered: Path, authority: Authority) -> str:
    """Return the controller's manifests for a controller outside the cluster.

    Returns:
        JSON without the Deployment, and with webhooks that lead to this host.
    """
    shipped = json.loads(rendered.read_text())
    trusted = base64.b64encode(authority.certificate.read_bytes()).decode()
    kept = [it for it in shipped["items"] if it["kind"] not in ("Deployment", "Secret", "Service")]
    for webhook in (hook for it in kept for hook in it.get("webhooks", ())):
        path = webhook["clientConfig"]["service"]["path"]
        url = f"https://{BRIDGE_ADDRESS}:{_WEBHOOK_PORT}{path}"
        webhook["clientConfig"] = {"url": url, "caBundle": trusted}
    return json.dumps(shipped | {"items": kept})


class JobSetController:
    """The controller; its manifests must have been applied."""

    def __init__(
        self, programs: Mapping[str, Path], state: Path, logs: Path, authority: Authority
    ) -> None:
        self._folder, self._authority = state / "jobset", authority
        account = f"/CN=system:serviceaccount:{NAMESPACE}:{_ACCOUNT}"
        kubeconfig = authority.kubeconfig(_ACCOUNT, account, SERVER)
        self._process = Process(
            "jobset-controller",
            [
                programs["jobset"],
                f"--config={self._folder / 'config.json'}",
                f"--kubeconfig={kubeconfig}",
            ],
            logs,
            state,
            {"TMPDIR": str(self._folder)},  # where its webhook server looks for the certificates
        )

    def start(self) -> None:
        """Start it and wait until its webhooks are there."""
        served = self._folder / "k8s-webhook-server/serving-certs"
        served.mkdir(parents=True, exist_ok=True)
        pair = self._authority.issue("jobset-webhook", "/CN=jobset", (BRIDGE_ADDRESS,))
        for source, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
            shutil.copy(source, served / name)
        settings = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": _PROBE},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": _WEBHOOK_PORT},
        }
        (self._folder / "config.json").write_text(json.dumps(settings))
        self._process.start()
        self._process.wait_until(_ready)

    def stop(self) -> None:
        """End it: JobSets are neither admitted nor reconciled until it is started again."""
        self._process.stop()


def _ready() -> bool:
    with urllib.request.urlopen(f"http://{_PROBE}/readyz", timeout=2) as answer:
        return answer.status == 200
