"""Reads the files of the user's code from a folder, a zip or the store, within size limits.

Sizes are checked before the files are read, because model_code may name the wrong ones. Called by
`model_code.py`, and by the upload of a user's code.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from kfp_tfjob.common import names
from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

# Code is smaller: a larger folder is probably data, or a whole home folder.
MOST_BYTES = 50 << 20
MOST_FILES = 10_000  # each is an object of the store, or a read of one
EXPECTED = (
    "a .py file, a folder or a zip with Python code of at most"
    f" {MOST_BYTES >> 20} MiB and {MOST_FILES:,} files"
)
_SKIPPED = {"__pycache__", ".git", ".ipynb_checkpoints"}


def local(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of a folder's files by relative path.

    Hidden files and caches are ignored. Links are followed only inside the folder.

    Raises:
        ConfigurationError: It is too large, cannot be read, or has links to files outside.
    """
    try:
        if path.is_file():
            sources = {path.name: (path, path.stat().st_size)}
        else:
            sources = dict(islice(_walk(path), MOST_FILES + 1))
        _check(sources, path)
        return {name: file.read_bytes() for name, (file, _) in sorted(sources.items())}
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "model_code cannot be read",
                received=error,
                expected="files that this process may read",
                fix="correct its permissions",
                path="model_code",
            )
        ) from error


def stored(store: Store, address: S3Address) -> dict[str, bytes]:
    """Return the content of an object that is a file or a zip, or of all objects below an address.

    Raises:
        ConfigurationError: They are too large, or have names that no file can have.
        StepError: They cannot be read from the store.
    """
    if address.name.endswith((".py", ".zip")):
        return {address.name: store.read(address, MOST_BYTES)}
    start = len(address.key) + 1 if address.key else 0
    objects: dict[str, tuple[S3Address, int]] = {}
    for entry in store.list(address):
        name = entry.address.key[start:]
        # A key that ends in / marks a folder. The key of the address itself leaves no name.
        if name and not name.endswith("/") and _is_code(name.split("/")):
            objects[name] = entry.address, entry.size
        if len(objects) > MOST_FILES:
            break
    if not objects and address.key and store.has(address):
        return {address.name: store.read(address, MOST_BYTES)}
    _check(objects, address)
    # The store may have changed since the listing, so the limit counts again.
    files, remaining_bytes = {}, MOST_BYTES
    for name, (object_address, _) in objects.items():
        files[name] = store.read(object_address, remaining_bytes)
        remaining_bytes -= len(files[name])
    if _is_manifest_of_code(files.get(MANIFEST, b"")):
        del files[MANIFEST]  # these are an earlier run's copy
    return files


def _is_manifest_of_code(data: bytes) -> bool:
    """Return whether a file is the manifest that a run wrote for its copy of the code."""
    try:
        return Manifest.from_bytes(data).kind == "code"
    except DataError:
        return False


def unzip(data: bytes, source: str) -> dict[str, bytes]:
    """Return the files of a zip.

    Args:
        data: The zip, at most MOST_BYTES.
        source: Where it came from, for messages.

    Raises:
        ConfigurationError: It is damaged, too large, or has entries that cannot be files.
    """
    files = {}
    with _translate_errors(source):
        archive = zipfile.ZipFile(io.BytesIO(data))
    with archive:
        named = ((_entry_name(info), info) for info in archive.infolist())
        entries = {
            name: (info, info.file_size)
            for name, info in named
            if name and not name.endswith("/") and _is_code(name.split("/"))
        }
        _check(entries, source)
        for name, (info, _) in entries.items():
            with _translate_errors(source):
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise zipfile.BadZipFile(f"{name} is a link; put the file itself into the zip")
                with archive.open(info) as stream:  # an entry may be longer than it says
                    files[name] = stream.read(info.file_size)
    return files


def _entry_name(info: zipfile.ZipInfo) -> str:
    """Return the path of a zip's entry, without the ./ of bsdtar and Windows' backslashes."""
    name = info.filename.replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name


@contextmanager
def _translate_errors(source: str) -> Iterator[None]:
    """Turn any error of zipfile, whose documentation does not list them, into a problem."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise ConfigurationError(
            Problem(
                f"{source} is not a zip file of code",
                received=f"{error!s:.300}" or type(error).__name__,
                expected="a zip file with a package, or with model.py, at its top level",
                fix="create the zip again",
                name="model-code-not-a-module",
            )
        ) from error


def _walk(top: Path) -> Iterator[tuple[str, tuple[Path, int]]]:
    """Yield the relative path of each file in a folder, the path to read, and the size."""
    resolved_top = top.resolve()
    for folder, folders, files in os.walk(top):
        for name in folders:
            if _is_code([name]) and (link := Path(folder, name)).is_symlink():
                log.warning("%s is a link to a folder; the run's code does not include it", link)
        folders[:] = [name for name in folders if _is_code([name])]
        for name in filter(lambda name: _is_code([name]), files):
            file = Path(folder, name)
            target = Path(os.path.realpath(file)) if file.is_symlink() else file  # of a loop, too
            if target is not file and not target.is_relative_to(resolved_top):
                raise ConfigurationError(
                    Problem(
                        f"{file} is a link to a file outside the folder of model_code",
                        received=f"a link to {target}",
                        expected="links only to files inside the folder",
                        fix="replace the link with a copy of the file",
                    )
                )
            status = target.stat() if target.exists() else None
            if status and stat.S_ISREG(status.st_mode):
                yield file.relative_to(top).as_posix(), (target, status.st_size)


def _is_code(parts: Iterable[str]) -> bool:
    """Return whether a path is part of the code: no part of it is hidden, or a cache."""
    return not any(part in _SKIPPED or (part.startswith(".") and part != "..") for part in parts)


def _check(files: Mapping[str, tuple[object, int]], source: object) -> None:
    """Reject files that are too large or have an impossible name, before reading them."""
    if len(files) > MOST_FILES:
        raise _too_large(source, f"more than {MOST_FILES:,} files")
    size = sum(size for _, size in files.values())
    if size > MOST_BYTES:
        raise _too_large(source, f"{size / (1 << 20):,.1f} MiB in {len(files):,} files")
    ConfigurationError.raise_if(names.problems(files, source))


def _too_large(source: object, received: str) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "model_code is too large",
            received=f"{source}: {received}",
            expected=EXPECTED,
            fix="name only the folder or file of the code; data and weights belong in"
            " data_uri or the image",
            path="model_code",
            name="model-code-too-large",
        )
    )
