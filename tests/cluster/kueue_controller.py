"""Kueue as a process of this host, under the rights of its own ServiceAccount.

It runs with the configuration that it ships, so what is off there is off here.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.cluster.cluster import STATE, Cluster
from tests.cluster.control_plane import SERVER
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.jobset_controller import lead_to_host, serve_with
from tests.cluster.processes import Process, answers

NAMESPACE = "kueue-system"
_ACCOUNT = "kueue-controller-manager"
_WEBHOOK_PORT = 9445
_HEALTH = "127.0.0.1:18084"
_LEFT_OUT = ("ConfigMap", "Deployment", "Secret", "Service")
_VISIBILITY = "kueue-visibility-server"  # says which jobs wait in a queue, in their order
_VISIBILITY_PORT = 8082
_REGISTERED = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService")
# Constants of Kueue. It looks in the first even if it serves no metrics.
_METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")
_VISIBILITY_CERTIFICATES = Path("/visibility")


class Kueue:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._authority = cluster, cluster.authority
        self._folder = STATE / "kueue"
        self._certificates = self._folder / "certificates"
        self._shipped = json.loads(cluster.program("kueue.json").read_text())["items"]
        account = f"/CN=system:serviceaccount:{NAMESPACE}:{_ACCOUNT}"
        kubeconfig = self._authority.kubeconfig(_ACCOUNT, account, SERVER)
        self._process = Process(
            "kueue",
            [
                cluster.program("kueue"),
                f"--config={self._folder / 'config.json'}",
                f"--kubeconfig={kubeconfig}",
                "--zap-log-level=2",
            ],
            cluster.logs,
            STATE,
        )

    def install(self) -> None:
        """Apply its manifests and make its certificates; start it before anything else is done."""
        for folder in (self._certificates, _METRICS_CERTIFICATES, _VISIBILITY_CERTIFICATES):
            serve_with(folder, "kueue-webhook", self._authority)
        applied = json.dumps({"apiVersion": "v1", "kind": "List", "items": self._manifests()})
        self._cluster.kubectl("apply", "--server-side", "-f", "-", stdin=applied)
        # It ends if a kind of its own is not there yet.
        established = ("--for=condition=Established", "crd", "--all", "--timeout=120s")
        self._cluster.kubectl("wait", *established)

    def start(self, more: Sequence[str] = ()) -> None:
        """Start it, or start it again, and wait until its webhooks are there.

        Args:
            more: Integrations to switch on, besides those of the configuration that it ships.
        """
        settings = yaml.safe_load(self._configuration())
        settings["integrations"]["frameworks"] += more
        settings |= {
            "health": {"healthProbeBindAddress": _HEALTH},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": _WEBHOOK_PORT, "certDir": str(self._certificates)},
        }
        (self._folder / "config.json").write_text(json.dumps(settings))
        self._process.stop()
        self._process.start()
        self._process.wait_until(lambda: answers(f"http://{_HEALTH}/readyz"))

    def remove(self) -> None:
        """End it, and give back what would disturb the cluster or the host."""
        for kind in _REGISTERED:
            names = [it["metadata"]["name"] for it in self._shipped if it["kind"] == kind]
            self._cluster.kubectl("delete", "--ignore-not-found", kind, *names)
        self._process.stop()
        shutil.rmtree(_METRICS_CERTIFICATES.parents[1], ignore_errors=True)
        shutil.rmtree(_VISIBILITY_CERTIFICATES, ignore_errors=True)

    def _configuration(self) -> str:
        found = (it["data"] for it in self._shipped if it["kind"] == "ConfigMap")
        return next(data["controller_manager_config.yaml"] for data in found)

    def _manifests(self) -> list[dict]:
        """Return what it ships for a process outside the cluster, with webhooks on this host."""
        kept = [it for it in self._shipped if it["kind"] not in _LEFT_OUT]
        hooks = [hook for it in kept for hook in it.get("webhooks", ())]
        hooks += [
            it["spec"]["conversion"]["webhook"]
            for it in kept
            if it["kind"] == "CustomResourceDefinition" and "conversion" in it["spec"]
        ]
        lead_to_host(hooks, _WEBHOOK_PORT, self._authority)
        named = {"metadata": {"name": _VISIBILITY, "namespace": NAMESPACE}}
        service = {"ports": [{"name": "https", "port": 443, "targetPort": _VISIBILITY_PORT}]}
        ports = [{"name": "https", "port": _VISIBILITY_PORT}]
        here = [{"addresses": [{"ip": BRIDGE_ADDRESS}], "ports": ports}]
        kept.append({"apiVersion": "v1", "kind": "Service", **named, "spec": service})
        kept.append({"apiVersion": "v1", "kind": "Endpoints", **named, "subsets": here})
        return kept
