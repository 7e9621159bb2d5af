"""Images without a registry: one small Debian with Python, under every name the manifests use.

The image holds no project. Each container of the test cluster sees the checkout and its virtual
environment by read-only mounts in containerd's base specification (`mounts`), so that the project's
own manifests run unchanged and nothing is built again when a line of code changes.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import logging
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from kfp_tfjob.components.images import TOOLS, TRAINER
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from tests.cluster.binaries import cache

log = logging.getLogger(__name__)

PYTHON = "kfp-tfjob-test/python:1"
PAUSE = "kfp-tfjob-test/pause:1"

_SUITE = "bookworm"  # its Python is 3.11, as the checkout's
_USER = 1000
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHECKOUT, _ENVIRONMENT = "/opt/kfp-tfjob", "/opt/venv"
_BYTECODE = "/var/cache/bytecode"
_SITE = f"{_ENVIRONMENT}/lib/python3.11/site-packages"
# addsitedir also reads the .pth files in it; those of the checkout itself name the host's path.
_PTH = f"import site; site.addsitedir('{_SITE}')\n{_CHECKOUT}\n"
_TRIMMED = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"]
_TRIMMED += ["var/cache/apt", "var/lib/apt/lists", "usr/lib/python3/dist-packages/README"]


def mounts() -> list[dict[str, object]]:
    """Return the mounts of every container, in the form of the OCI runtime specification."""
    bytecode = cache() / "bytecode"
    bytecode.mkdir(parents=True, exist_ok=True)
    bytecode.chmod(0o1777)  # every user of every container adds to it
    sources = {
        _CHECKOUT: (Path(__file__).parents[2], "ro"),
        _ENVIRONMENT: (Path(sys.prefix), "ro"),
        # Without it each `import tensorflow` compiles thousands of files again.
        _BYTECODE: (bytecode, "rw"),
    }
    return [
        {
            "destination": destination,
            "type": "bind",
            "source": str(source),
            "options": ["rbind", "nosuid", "nodev", mode],
        }
        for destination, (source, mode) in sources.items()
    ]


def archive() -> Path:
    """Return the images as one docker-archive, made at the first use.

    Raises:
        ConfigurationError: debootstrap failed.
    """
    recipe = inspect.getsource(sys.modules[__name__]) + TOOLS + TRAINER
    target = cache() / f"image-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
    if not target.exists():
        began = time.monotonic()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            layer = _layer(Path(scratch))
            partial = Path(scratch) / target.name
            _write_archive(layer, partial)
            partial.replace(target)
        log.info("made the images in %.0f s", time.monotonic() - began)
    return target


def _layer(scratch: Path) -> Path:
    """Return a tar of the image's only layer."""
    root = scratch / "root"
    done = subprocess.run(
        ["nice", "-n", "10", "debootstrap", "--variant=minbase", "--include=python3", _SUITE, root],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ConfigurationError(
            Problem(
                "debootstrap could not make the test image",
                received=(done.stdout + done.stderr)[-2000:].strip(),
                fix="it must reach a mirror of Debian once; the result is kept in the cache",
            )
        )
    for folder in _TRIMMED:
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "usr/lib/python3/dist-packages/kfp-tfjob.pth").write_text(_PTH)
    (root / "usr/bin/python").symlink_to("python3")
    for folder in (_CHECKOUT, _ENVIRONMENT, _BYTECODE):
        (root / folder.lstrip("/")).mkdir(parents=True)
    with open(root / "etc/passwd", "a") as passwd:
        passwd.write(f"kfp:x:{_USER}:{_USER}::/tmp:/bin/sh\n")
    with open(root / "etc/group", "a") as group:
        group.write(f"kfp:x:{_USER}:\n")
    layer = scratch / "layer.tar"
    subprocess.run(
        ["tar", "--numeric-owner", "--exclude=./dev/*", "-C", root, "-cf", layer, "."], check=True
    )
    return layer


def _write_archive(layer: Path, target: Path) -> None:
    """Write the format of `docker save`: manifest.json, a configuration an image, the layer."""
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    images = {
        (PYTHON, TOOLS, TRAINER): {
            "User": str(_USER),
            "Env": [f"PATH={path}", f"PYTHONPYCACHEPREFIX={_BYTECODE}", "PYTHONUNBUFFERED=1"],
            "WorkingDir": "/tmp",
            "Cmd": ["python3"],
        },
        (PAUSE,): {"Env": [f"PATH={path}"], "Cmd": ["sleep", "infinity"]},
    }
    manifest = []
    with tarfile.open(target, "w") as tar:
        tar.add(layer, "layer.tar")
        for names, run in images.items():
            body = json.dumps(
                {
                    "architecture": ARCHITECTURES[platform.machine()],
                    "os": "linux",
                    "config": run,
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                }
            ).encode()
            config = f"{hashlib.sha256(body).hexdigest()}.json"
            _add(tar, config, body)
            manifest.append({"Config": config, "RepoTags": list(names), "Layers": ["layer.tar"]})
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(body)
    tar.addfile(entry, io.BytesIO(body))
