"""A node: a containerd of its own and a kubelet, both with all their files in one folder."""

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster import node_images, seed
from tests.cluster.control_plane import SERVER
from tests.cluster.host import (
    BRIDGE,
    BRIDGE_ADDRESS,
    SUBNET,
    kill_in_cgroup,
    make_cgroup,
    remove_cgroup,
    unmount,
)
from tests.cluster.pki import Authority
from tests.cluster.processes import Process, end_marked

_KUBELET_PORT = 10250
# Keys of taints; the value is the name of the node.
EXTRA = "kfp-tfjob-test/extra"
SCARCE = "kfp-tfjob-test/scarce"
_CNI_RESULTS = Path("/var/lib/cni/results")

_CONTAINERD = """
version = 2
root = "{folder}/images"
state = "{folder}/run"
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# A host without CAP_SYS_RESOURCE refuses the score of a sandbox, and runc then ends with EOF.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{folder}/registries"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{folder}/runc"
"""


class Node:
    """One node of the cluster.

    Args:
        number: From 1; decides its name, its address and those of its pods.
        state: Of the cluster; the node's folder is made in it.
        taint: The key of a taint that keeps away pods which do not tolerate this very node.
    """

    def __init__(
        self,
        number: int,
        programs: Mapping[str, Path],
        state: Path,
        logs: Path,
        authority: Authority,
        taint: str = "",
    ) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.address = f"{BRIDGE_ADDRESS.rpartition('.')[0]}.{number}"
        self._folder = state / self.name
        self._socket = self._folder / "containerd.sock"
        self._cgroup = _cgroup(self._folder)
        self._containerd = Process(
            f"containerd-{self.name}",
            ["containerd", "--config", self._folder / "containerd.toml"],
            logs,
            self._folder,
        )
        self._kubelet = Process(
            f"kubelet-{self.name}",
            [
                programs["kubelet"],
                f"--config={self._folder / 'kubelet.json'}",
                f"--kubeconfig={self._folder / 'kubelet.conf'}",
                f"--root-dir={self._folder / 'kubelet'}",
                f"--cert-dir={self._folder / 'pki'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                *([f"--register-with-taints={taint}={self.name}:NoSchedule"] if taint else []),
            ],
            logs,
            self._folder,
        )
        self._authority = authority

    def start_runtime(self) -> None:
        """Start containerd and give it the images; needs no API server."""
        self._configure()
        seed.plant(self._folder / "images")
        self._containerd.start()
        self._containerd.wait_until(lambda: self._ctr("version"))
        self._ctr("images", "import", node_images.current().archive, check=True)

    def start_kubelet(self) -> None:
        """Start the kubelet, which registers the node; the runtime must be there."""
        self._kubelet.start()

    def freeze(self) -> None:
        """Stop the kubelet's clock: the node becomes NotReady while its pods run on."""
        self._kubelet.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._kubelet.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Lose the node: kubelet, containerd and every process of its pods, at once."""
        clean_up(self._folder)

    def kill_pod(self, uid: str) -> None:
        """Kill every process of a pod, also of one the API server has forgotten."""
        kill_in_cgroup(self._cgroup, f"pod{uid}")

    def _configure(self) -> None:
        make_cgroup(self._cgroup)
        for name in ("cni", "kubelet", "registries/_default"):
            (self._folder / name).mkdir(parents=True)
        self._authority.kubeconfig(
            self.name, f"/O=system:nodes/CN=system:node:{self.name}", SERVER
        ).rename(self._folder / "kubelet.conf")
        text = _CONTAINERD.format(folder=self._folder, socket=self._socket, pause=node_images.PAUSE)
        (self._folder / "containerd.toml").write_text(text)
        # There is no registry: a pull of any image is refused at once.
        (self._folder / "registries/_default/hosts.toml").write_text(
            'server = "http://127.0.0.1:1"'
        )
        self._write("cni/10-bridge.conflist", self._network())
        (self._folder / "resolv.conf").touch()
        self._write("kubelet.json", self._kubelet_configuration())

    def _network(self) -> dict[str, object]:
        prefix = SUBNET.rsplit(".", 2)[0]
        pods = {
            "subnet": SUBNET,
            "rangeStart": f"{prefix}.{self.number}.1",
            "rangeEnd": f"{prefix}.{self.number}.254",
            "gateway": BRIDGE_ADDRESS,
        }
        addresses = {
            "type": "host-local",
            "dataDir": str(self._folder / "addresses"),
            "ranges": [[pods]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": "kfp-tfjob", "plugins": [bridge]}

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": _KUBELET_PORT,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [BRIDGE_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._folder / "resolv.conf"),
            "podLogsDir": str(self._folder / "pod-logs"),
            "volumePluginDir": str(self._folder / "volume-plugins"),
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            # A test that waits for the node waits seconds; the defaults are tens of seconds.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "volumeStatsAggPeriod": "5s",
        }

    def _write(self, name: str, content: object) -> None:
        (self._folder / name).write_text(json.dumps(content))

    def _ctr(self, *arguments: str | Path, check: bool = False) -> bool:
        command = ["ctr", "--address", self._socket, "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"ctr {arguments[0]} on {self.name}: {done.stderr.strip()}")
        return done.returncode == 0


def tolerate(taint: str, node: str) -> dict[str, str]:
    """Return the toleration for the taint of this node, and of no other test's."""
    return {"key": taint, "operator": "Equal", "value": node, "effect": "NoSchedule"}


def preferring(node: Node) -> dict[str, Any]:
    """Return the settings of a pod that is put on an extra node as long as it is there."""
    names = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    prefer = [{"weight": 100, "preference": {"matchExpressions": [names]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}}
    return {"affinity": affinity, "tolerations": [tolerate(EXTRA, node.name)]}


def clean_up(folder: Path) -> None:
    """End everything of the node that has this folder, and remove what it keeps elsewhere."""
    end_marked(folder)
    remove_cgroup(_cgroup(folder))
    # The directories of these files are constants of containerd and of the CNI library.
    for address in folder.glob("run/io.containerd.runtime.v2.task/k8s.io/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    for sandbox in folder.glob("images/io.containerd.grpc.v1.cri/sandboxes/*"):
        for result in _CNI_RESULTS.glob(f"*-{sandbox.name}-*"):
            result.unlink()
    unmount(folder)


def _cgroup(folder: Path) -> str:
    return f"kfp-tfjob-{folder.name}"
