"""etcd, the API server, the controllers, the scheduler and DNS, as processes of this host."""

from collections.abc import Mapping
from pathlib import Path

from tests.cluster.audit import POLICY
from tests.cluster.host import API_PORT, API_SERVICE_ADDRESS, BRIDGE_ADDRESS, SERVICE_SUBNET
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, answers

SERVER = f"https://{BRIDGE_ADDRESS}:{API_PORT}"
_ETCD = f"http://{BRIDGE_ADDRESS}:2379"
_ETCD_PEER = f"http://{BRIDGE_ADDRESS}:2380"

# A node that is silent this long is NotReady, and this long after that its pods are deleted: in a
# real cluster 40 to 50 s and 300 s. Not less: an API server that restarts is silence too.
NODE_SILENT_SECONDS = 16
EVICTED_AFTER_SECONDS = 4

_COREFILE = """
cluster.local:53 {{
    bind {address}
    errors
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
# Pods have no way out, so every other name is known not to exist, at once. A zone of its own: in
# one zone `template` is asked before `kubernetes`, whatever the order here.
.:53 {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


class ApiServer:
    """etcd and the kube-apiserver in front of it."""

    def __init__(
        self, programs: Mapping[str, Path], state: Path, logs: Path, authority: Authority
    ) -> None:
        certificate, key = authority.issue(
            "apiserver",
            "/CN=kube-apiserver",
            (API_SERVICE_ADDRESS, BRIDGE_ADDRESS, "127.0.0.1"),
            ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"),
        )
        signing, public = authority.signing_pair("sa")
        proxy, proxy_key = authority.issue("front-proxy", "/CN=front-proxy")
        self.audit_log = state / "audit.log"
        policy = state / "audit-policy.yaml"
        if not policy.exists():
            policy.write_text(POLICY)
        self._authority = authority
        self._etcd = Process(
            "etcd",
            [
                programs["etcd"],
                f"--data-dir={state / 'etcd'}",
                f"--listen-client-urls={_ETCD}",
                f"--advertise-client-urls={_ETCD}",
                f"--listen-peer-urls={_ETCD_PEER}",
                f"--initial-advertise-peer-urls={_ETCD_PEER}",
                f"--initial-cluster=default={_ETCD_PEER}",
                "--unsafe-no-fsync",  # the data does not outlive the test session
            ],
            logs,
            state,
        )
        self._server = Process(
            "kube-apiserver",
            [
                programs["kube-apiserver"],
                f"--etcd-servers={_ETCD}",
                f"--secure-port={API_PORT}",
                f"--bind-address={BRIDGE_ADDRESS}",
                f"--advertise-address={BRIDGE_ADDRESS}",
                f"--service-cluster-ip-range={SERVICE_SUBNET}",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                f"--client-ca-file={authority.certificate}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--service-account-key-file={public}",
                f"--service-account-signing-key-file={signing}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--audit-policy-file={policy}",
                f"--audit-log-path={self.audit_log}",
                # Webhooks are reached at their Endpoints; there is no kube-proxy.
                "--enable-aggregator-routing=true",
                # Of APIServices, such as Kueue's.
                f"--requestheader-client-ca-file={authority.certificate}",
                "--requestheader-allowed-names=front-proxy",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={proxy}",
                f"--proxy-client-key-file={proxy_key}",
                # `kubectl logs` would look the node's name up.
                "--kubelet-preferred-address-types=InternalIP",
                f"--default-not-ready-toleration-seconds={EVICTED_AFTER_SECONDS}",
                f"--default-unreachable-toleration-seconds={EVICTED_AFTER_SECONDS}",
            ],
            logs,
            state,
        )

    def start(self) -> None:
        self._etcd.start()
        self._server.start()
        certificate = self._authority.certificate
        self._server.wait_until(lambda: answers(f"{SERVER}/readyz", certificate))

    def restart(self) -> None:
        """End the API server, with every watch, and start it again; etcd keeps the data."""
        self._server.stop(grace=1)  # it would wait for its watches, which never end
        self.start()


def controllers(
    programs: Mapping[str, Path], state: Path, logs: Path, authority: Authority
) -> list[Process]:
    """Return the controller manager, the scheduler and DNS, not started."""

    def kubeconfig(name: str, subject: str) -> Path:
        return authority.kubeconfig(name, subject, SERVER)

    manager = kubeconfig("controller-manager", "/CN=system:kube-controller-manager")
    scheduler = kubeconfig("scheduler", "/CN=system:kube-scheduler")
    corefile = state / "Corefile"
    reader = kubeconfig("coredns", "/O=system:masters/CN=coredns")
    if not corefile.exists():
        corefile.write_text(_COREFILE.format(address=BRIDGE_ADDRESS, kubeconfig=reader))
    commands = {
        "kube-controller-manager": [
            programs["kube-controller-manager"],
            f"--kubeconfig={manager}",
            f"--service-account-private-key-file={authority.folder / 'sa.key'}",
            f"--root-ca-file={authority.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--flex-volume-plugin-dir={state / 'volume-plugins'}",
            "--secure-port=0",
            "--node-monitor-period=2s",
            f"--node-monitor-grace-period={NODE_SILENT_SECONDS}s",
        ],
        "kube-scheduler": [
            programs["kube-scheduler"],
            f"--kubeconfig={scheduler}",
            "--leader-elect=false",
            "--secure-port=0",
        ],
        "coredns": [programs["coredns"], "-conf", corefile],
    }
    return [Process(name, command, logs, state) for name, command in commands.items()]
