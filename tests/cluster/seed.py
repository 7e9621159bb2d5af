"""The root folder of a containerd that has the large layers of the images already.

Unpacking gigabytes on each node of each start would take minutes. It is done once in the cache; a
node gets the files as hard links, which takes a second and no space: containers never write to the
layers of an image, and containerd writes its databases; each node has its own copy.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.cluster import node_images
from tests.cluster.binaries import cache
from tests.cluster.processes import Process

log = logging.getLogger(__name__)

_CONFIGURATION = """
version = 2
root = "{folder}/root"
state = "{folder}/run"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/containerd.sock"
"""


def make() -> Path:
    """Make the folder for the images of the last build, unless it is there.

    Raises:
        StepError: containerd did not start; with the end of its log.
    """
    target = cache() / f"seed-{node_images.current().layers}"
    with open(cache() / "images" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        began = time.monotonic()
        for old in cache().glob("seed-*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            folder = Path(scratch)
            _fill(folder)
            _share(folder / "root")
            (folder / "root").rename(target)
        log.info("unpacked the images in %.0f s", time.monotonic() - began)
    return target


def plant(root: Path) -> None:
    """Make the root folder of a node's containerd from the seed."""
    seed = cache() / f"seed-{node_images.current().layers}"
    linked = subprocess.run(["cp", "-al", seed, root], capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", seed, root], check=True)
    for database in root.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)


def _fill(folder: Path) -> None:
    (folder / "containerd.toml").write_text(_CONFIGURATION.format(folder=folder))
    command = ["containerd", "--config", folder / "containerd.toml"]
    containerd = Process("containerd-seed", command, folder, folder)
    ctr = ["ctr", "--address", folder / "containerd.sock", "--namespace", "k8s.io"]
    containerd.start()
    try:
        containerd.wait_until(
            lambda: subprocess.run([*ctr, "version"], capture_output=True).returncode == 0
        )
        importing = subprocess.Popen(
            ["nice", "-n", "10", *ctr, "images", "import", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        with importing.stdin as pipe:
            node_images.write_archive(pipe, large=True)
        if importing.wait():
            raise RuntimeError(f"ctr images import: {importing.stderr.read().decode().strip()}")
    finally:
        containerd.stop(grace=30)


def _share(root: Path) -> None:
    """Let the layers in the layout of the builder and in the store of containerd be one file."""
    for layer in node_images.large_layers():
        stored = root / "io.containerd.content.v1.content" / "blobs" / "sha256" / layer.name
        link = layer.with_suffix(".link")
        os.link(stored, link)
        link.replace(layer)
