"""Whether this machine can run the test cluster; everything that stands in the way, at once.

python -m tests.cluster.prerequisites     ends with 2, and a sentence each, where it cannot
"""

import os
import platform
import shutil
import subprocess
import sys

from kfp_tfjob.common.errors import Problem
from tests.cluster import binaries, host, node_images

# Containers need namespaces, and mounts in them; a container engine often forbids both.
_NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork"]
_NAMESPACES += ["mount", "-t", "tmpfs", "none", "/mnt"]


def missing() -> list[Problem]:
    """Return what keeps this machine from running the test cluster; nothing where it can."""
    found = [_root()]
    if not any(found):  # the kernel is asked by doing what only root on Linux may
        found += [_namespaces(), _packages()]
    return [problem for problem in (*found, _go()) if problem]


def _root() -> Problem | None:
    known = platform.system() == "Linux" and platform.machine() in node_images.ARCHITECTURES
    if known and os.geteuid() == 0:
        return None
    return Problem(
        "the test cluster runs the kubelet and containers, and makes namespaces and bridges",
        received=f"user id {os.geteuid()} on {platform.system()}, {platform.machine()}",
        expected=f"root on Linux, {' or '.join(node_images.ARCHITECTURES)}",
        fix="run it as root on a (virtual) machine where nothing else depends on its network",
    )


def _namespaces() -> Problem | None:
    done = subprocess.run(_NAMESPACES, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return Problem(
        "containers need namespaces and mounts of their own, and the kernel refuses them",
        received=done.stderr.strip()[-300:] or f"exit code {done.returncode}",
        expected="a machine, or a container with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        fix="run it on a machine and not in a container, or in one that is privileged",
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
    """Say that Go is missing; one that is too old says so itself."""
    if shutil.which("go") or not binaries.unbuilt():
        return None
    return Problem(
        "the servers of the test cluster are built from Go modules",
        received="no command `go`",
        expected="the version in tests/cluster/go/*/go.mod or newer",
        fix="install it from https://go.dev/dl and put it on the PATH",
    )


if __name__ == "__main__":
    problems = missing()
    print(*(f"- {problem}" for problem in problems), sep="\n", end="\n" if problems else "")
    sys.exit(2 if problems else 0)
