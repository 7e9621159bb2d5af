"""The JobSet controller as a process of this host, under the rights of its own ServiceAccount."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import SERVER
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, answers

NAMESPACE = "jobset-system"
_ACCOUNT = "jobset-controller-manager"
_WEBHOOK_PORT = 9444
_HEALTH = "127.0.0.1:18083"


def manifests(rendered: Path, authority: Authority) -> str:
    """Return the controller's manifests for a controller outside the cluster.

    Returns:
        JSON without the Deployment, and with webhooks that lead to this host.
    """
    shipped = json.loads(rendered.read_text())
    kept = [it for it in shipped["items"] if it["kind"] not in ("Deployment", "Secret", "Service")]
    lead_to_host((hook for it in kept for hook in it.get("webhooks", ())), _WEBHOOK_PORT, authority)
    return json.dumps(shipped | {"items": kept})


def lead_to_host(webhooks: Iterable[dict[str, Any]], port: int, authority: Authority) -> None:
    """Change the addresses of webhooks to those of a controller on this host."""
    for webhook in webhooks:
        path = webhook["clientConfig"]["service"]["path"]
        url = f"https://{BRIDGE_ADDRESS}:{port}{path}"
        webhook["clientConfig"] = {"url": url, "caBundle": authority.trusted}


def serve_with(folder: Path, name: str, authority: Authority) -> None:
    """Put a certificate and its key where a webhook server looks for them."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = authority.issue(name, f"/CN={name}", (BRIDGE_ADDRESS,))
    for source, target in zip(pair, ("tls.crt", "tls.key"), strict=True):
        shutil.copy(source, folder / target)


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
        folder = self._folder / "k8s-webhook-server/serving-certs"
        serve_with(folder, "jobset-webhook", self._authority)
        settings = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": _HEALTH},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": _WEBHOOK_PORT},
        }
        (self._folder / "config.json").write_text(json.dumps(settings))
        self._process.start()
        self._process.wait_until(lambda: answers(f"http://{_HEALTH}/readyz"))

    def stop(self) -> None:
        """End it: JobSets are neither admitted nor reconciled until it is started again."""
        self._process.stop()
