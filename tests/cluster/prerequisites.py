"""Whether this machine can run the test cluster; everything that stands in the way, at once.

python -m tests.cluster.prerequisites     ends with 2, and a sentence each, where it cannot
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from tests.cluster import binaries, host, node_images

_VERSION = re.compile(r"go(\d+)\.(\d+)")


def missing() -> list[Problem]:
    """Return what keeps this machine from running the test cluster; nothing where it can."""
    found = [check() for check in (_system, _root)]
    if not any(found):  # the kernel is asked by doing what only root on Linux may
        found += [check() for check in (_namespaces, _cgroups, _bridge, _packages)]
    return [problem for problem in (*found, _go()) if problem]


def require() -> None:
    """Check all of it."""
    if problems := missing():
        raise ConfigurationError(*problems)


def _system() -> Problem | None:
    if platform.system() == "Linux" and platform.machine() in node_images.ARCHITECTURES:
        return None
    return Problem(
        "the test cluster runs the kubelet and containers",
        received=f"{platform.system()} on {platform.machine()}",
        expected=f"Linux on {' or '.join(node_images.ARCHITECTURES)}",
        fix="use a virtual machine, or set KUBECONFIG to a cluster that has the training-operator",
    )


def _root() -> Problem | None:
    if os.geteuid() == 0:
        return None
    return Problem(
        "the test cluster makes namespaces, bridges and mounts",
        received=f"user id {os.geteuid()}",
        expected="root",
        fix="run it as root on a machine where nothing else depends on its network",
    )


def _namespaces() -> Problem | None:
    """Containers need namespaces, and mounts in them; a container engine often forbids both."""
    command = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork"]
    return _tried(
        "containers need namespaces and mounts of their own, and the kernel refuses them",
        [*command, "mount", "-t", "tmpfs", "none", "/mnt"],
        "a machine, or a container with CAP_SYS_ADMIN and CAP_NET_ADMIN",
    )


def _cgroups() -> Problem | None:
    roots = host.hierarchies()
    problem = "" if roots else f"no cgroup hierarchy below {host.CGROUPS}"
    for root in roots:
        probe = root / f"kfp-tfjob-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            problem = str(error)
    if not problem:
        return None
    return Problem(
        "pods are put into cgroups of their own, and none can be made",
        received=problem,
        expected="a writable /sys/fs/cgroup",
        fix="run it on a machine and not in a container, or in one that is privileged",
    )


def _bridge() -> Problem | None:
    """Without iproute2 this is asked again by what uses it."""
    if not shutil.which("ip"):
        return None
    name = f"kfpprobe{os.getpid() % 1000}"
    inside = f"ip link add {name} type bridge && ip link delete {name}"
    return _tried(
        "pods are connected by a bridge, and none can be made",
        ["unshare", "--net", "sh", "-c", inside],
        "a kernel with the module bridge",
    )


def _packages() -> Problem | None:
    packages = host.missing_packages()
    if not packages or shutil.which("apt-get"):
        return None
    return Problem(
        "programs are missing, and there is no apt-get to install them",
        received=f"without {', '.join(packages)}",
        expected="Debian or Ubuntu, or these programs by other means",
        fix="install what the Debian packages of these names hold",
    )


def _go() -> Problem | None:
    wanted = max(version(path.read_text()) for path in binaries.MODULES.glob("*/go.mod"))
    if not binaries.unbuilt():
        return None
    received = "no command `go`"
    if shutil.which("go"):
        received = subprocess.run(["go", "version"], capture_output=True, text=True).stdout.strip()
        if version(received) >= wanted:
            return None
    return Problem(
        "the servers of the test cluster are built from Go modules",
        received=received,
        expected=f"Go {wanted[0]}.{wanted[1]} or newer",
        fix="install it from https://go.dev/dl and put it on the PATH",
    )


def version(text: str) -> tuple[int, int]:
    """Return the version in `go1.26.8`, or in the line `go 1.26.0` of a go.mod; else (0, 0)."""
    match = _VERSION.search(re.sub(r"(?m)^go (\d)", r"go\1", text))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _tried(what: str, command: list[str], expected: str) -> Problem | None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return Problem(
        what,
        received=done.stderr.strip()[-300:] or f"exit code {done.returncode}",
        expected=expected,
        fix="run it on a machine, or set KUBECONFIG to a cluster that has the training-operator",
    )


if __name__ == "__main__":
    problems = [] if os.environ.get("KUBECONFIG") else missing()
    print(*(f"- {problem}" for problem in problems), sep="\n", end="\n" if problems else "")
    sys.exit(2 if problems else 0)
