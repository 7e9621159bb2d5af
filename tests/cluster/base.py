"""The base of the test images: Debian with Python, made from Debian packages, without a registry.

It stands for python:3.11-slim-bookworm, whose layers a machine without a registry cannot have.
"""

import hashlib
import inspect
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kfp_tfjob.common.errors import ConfigurationError, Problem
from tests.cluster.binaries import cache

log = logging.getLogger(__name__)

_SUITE = "bookworm"  # its Python is 3.11, as that image's
_PACKAGES = "python3,python3-venv,ca-certificates"  # what the official image has too
_TRIMMED = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"]
_TRIMMED += ["var/cache/apt", "var/lib/apt/lists", "var/log"]
_CONTAINERFILE = "FROM scratch\nADD root.tar /\n"


def name() -> str:
    """Return the name of the image; another recipe gives another name."""
    recipe = inspect.getsource(sys.modules[__name__])
    return f"localhost/kfp-tfjob-test/base:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def make(buildah: Sequence[str]) -> str:
    """Make the image if it is not there.

    Returns:
        Its name.
    """
    image = name()
    there = subprocess.run([*buildah, "inspect", "--type", "image", image], capture_output=True)
    if there.returncode == 0:
        return image
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        folder = Path(scratch)
        _bootstrap(folder / "root")
        tar = ["tar", "--numeric-owner", "--sort=name", "--exclude=./dev/*"]
        subprocess.run([*tar, "-C", folder / "root", "-cf", folder / "root.tar", "."], check=True)
        shutil.rmtree(folder / "root")
        (folder / "Containerfile").write_text(_CONTAINERFILE)
        build = [*buildah, "bud", "--quiet", "--timestamp", "0", "-t", image, folder]
        subprocess.run(build, check=True, capture_output=True)
    log.info("made the base of the images in %.0f s", time.monotonic() - began)
    return image


def _bootstrap(root: Path) -> None:
    options = ["--variant=minbase", f"--include={_PACKAGES}"]
    done = subprocess.run(
        ["nice", "-n", "10", "debootstrap", *options, _SUITE, root],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ConfigurationError(
            Problem(
                "debootstrap could not make the base of the test images",
                received=(done.stdout + done.stderr)[-2000:].strip(),
                fix="it must reach a mirror of Debian once; the result is kept in the cache",
            )
        )
    for folder in _TRIMMED:
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / "usr/bin/python").symlink_to("python3")
