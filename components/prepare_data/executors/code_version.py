"""The version of the code that runs here, down to the last byte: a tag of an image may move."""

from __future__ import annotations

import importlib
import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kfp_tfjob.options.images import VERSION

# A task of prepare_data runs code of these.
_PACKAGES = ("components", "features", "options", "storage", "user_code")
_LIBRARIES = ("distributed", "numpy", "pyarrow")


@cache
def code_version() -> str:
    """Return the version for people and for comparison.

    Returns:
        For instance `0.3.0, code 0f3a5b7c9d1e, Python 3.11, numpy 2.4.1`.
    """
    digest = sha256()
    for package in _PACKAGES:
        (folder,) = importlib.import_module(f"kfp_tfjob.{package}").__path__
        for path in sorted(Path(folder).rglob("*.py")):
            name = f"{package}/{path.relative_to(folder).as_posix()}"
            digest.update(f"{name}\0".encode() + sha256(path.read_bytes()).digest())
    python = ".".join(platform.python_version_tuple()[:2])
    libraries = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    return f"{VERSION}, code {digest.hexdigest()[:12]}, Python {python}, {libraries}"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # Dask, in an environment without it
        return "is not installed"
