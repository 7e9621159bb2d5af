"""What the test cluster needs from the host and changes on it, and how the host gets it back."""

import contextlib
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem
from tests.cluster.processes import kill, wait_until

log = logging.getLogger(__name__)

BRIDGE = "kfptfjob0"
SUBNET = "10.244.0.0/16"
BRIDGE_ADDRESS = "10.244.0.1"  # the API server, DNS, the webhook and the S3 server answer here
API_PORT = 6443
SERVICE_SUBNET = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"

_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "debootstrap": "debootstrap",
    "buildah": "buildah",
    "docker-registry": "docker-registry",
    "openssl": "openssl",
}
_BRIDGE_MAC = "02:6b:66:70:00:01"  # administered locally
_COMMENT = ["-m", "comment", "--comment", "kfp-tfjob-test-cluster"]
# What kube-proxy would do: pods reach the API server at its Service. And pods may talk to each
# other where the host filters bridges.
_RULES = [
    ["-t", "nat", "PREROUTING", "-i", BRIDGE, "-d", API_SERVICE_ADDRESS, "-p", "tcp"]
    + ["--dport", "443", *_COMMENT, "-j", "DNAT", "--to-destination"]
    + [f"{BRIDGE_ADDRESS}:{API_PORT}"],
    ["-t", "filter", "FORWARD", "-i", BRIDGE, "-o", BRIDGE, *_COMMENT, "-j", "ACCEPT"],
]
# The kubelet sets these.
_SYSCTLS = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
]
CGROUPS = Path("/sys/fs/cgroup")
_CONTAINER_LOGS = Path("/var/log/containers")  # links; the kubelet's path for them is fixed
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")  # fixed too
_APT_SECONDS = 1800
_APT_WORDS = 1000  # characters of its last words


def missing_packages() -> list[str]:
    return [package for file, package in _PACKAGES.items() if not shutil.which(file)]


def install() -> None:
    packages = missing_packages()
    if not packages:
        return
    log.info("installing %s", ", ".join(packages))
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_APT_SECONDS
        )
    # An update that fails for one source is no reason to stop; what counts is the installation.
    if done.returncode or missing_packages():
        raise ConfigurationError(
            Problem(
                "the test cluster needs Debian packages that could not be installed",
                received=done.stderr[-_APT_WORDS:].strip(),
                expected=", ".join(packages),
                fix="install them",
            )
        )


def take(state: Path) -> None:
    """Make the bridge and the rules; the values the kubelet will change are kept in `state`."""
    values = {name: Path("/proc/sys", name).read_text().strip() for name in _SYSCTLS}
    (state / "sysctl.json").write_text(json.dumps(values))
    # Without an address of its own a bridge takes the lowest one of its ports: it would change as
    # pods come and go, and those that know the old one would not reach the bridge for a minute.
    _run("ip", "link", "add", BRIDGE, "address", _BRIDGE_MAC, "type", "bridge")
    _run("ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")
    for table, name, chain, *rule in _RULES:
        _run("iptables", "-w", table, name, "-I", chain, *rule)


def add_address(address: str) -> None:
    _run("ip", "address", "add", f"{address}/16", "dev", BRIDGE)


def remove_address(address: str) -> None:
    _run("ip", "address", "delete", f"{address}/16", "dev", BRIDGE)


def give_back(state: Path) -> None:
    """Undo `take`, and what nodes left; works on a stale state too."""
    if shutil.which("iptables"):
        for table, name, chain, *rule in _RULES:
            while _run("iptables", "-w", table, name, "-D", chain, *rule, check=False):
                continue
    if Path("/sys/class/net", BRIDGE).exists():
        _run("ip", "link", "delete", BRIDGE)
    if (state / "sysctl.json").exists():
        for name, value in json.loads((state / "sysctl.json").read_text()).items():
            Path("/proc/sys", name).write_text(value)
    for link in _CONTAINER_LOGS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(state):
            link.unlink()
    for left in ("kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION"):
        (_DEVICE_PLUGINS / left).unlink(missing_ok=True)
    for folder in (_CONTAINER_LOGS, _DEVICE_PLUGINS, _DEVICE_PLUGINS.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def unmount(folder: Path) -> None:
    """Unmount everything below `folder`, the newest mount first."""
    for point in reversed(list(_mounts(folder))):
        _run("umount", "--lazy", point)


def remove(folder: Path) -> None:
    """Remove a folder, and never what is mounted in it."""
    unmount(folder)
    if any(_mounts(folder)):
        raise RuntimeError(f"something is still mounted below {folder}")
    shutil.rmtree(folder, ignore_errors=True)


def _mounts(folder: Path) -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4].replace("\\040", " "))
        if point.is_relative_to(folder):
            yield point


def make_cgroup(name: str) -> None:
    """Make a cgroup of this name in every hierarchy; a kubelet does not make its own root."""
    for root in hierarchies():
        group = root / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which takes no task
            if (root / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((root / setting).read_text())


def remove_cgroup(name: str) -> None:
    """Kill every process in the cgroup of this name and remove it, with all below."""
    for root in hierarchies():
        wait_until(lambda root=root: _removed(root / name), 10)


def kill_in_cgroup(name: str, below: str) -> None:
    """Kill every process in the cgroups called `below` under the cgroup of this name."""
    for root in hierarchies():
        for group in _groups(root / name):
            if below in group.parts:
                _kill_in(group)


def _removed(group: Path) -> bool:
    groups = _groups(group)
    for path in groups:
        _kill_in(path)
    for path in reversed(groups):
        path.rmdir()  # an OSError while a process is still ending: tried again
    return not group.exists()


def _groups(group: Path) -> list[Path]:
    """Return a cgroup and those below, parents first; one that vanishes meanwhile is no error."""
    return [Path(folder) for folder, _, _ in os.walk(group)]


def _kill_in(group: Path) -> None:
    with contextlib.suppress(OSError):  # it has vanished
        kill([int(pid) for pid in (group / "cgroup.procs").read_text().split()])


def hierarchies() -> list[Path]:
    """Return the roots of cgroup v1's hierarchies, or the only one of v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.glob("*") if (path / "cgroup.procs").exists()]


def _run(*command: str | Path, check: bool = True) -> bool:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.returncode == 0
