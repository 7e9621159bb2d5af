"""Sends, fetches and verifies a whole folder by its manifest.

The manifest is written last and deleted first, so a folder with a manifest is complete. Called by
every step for its inputs and outputs, so heavy modules are imported only where they are used.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_tfjob.common import files, names
from kfp_tfjob.common.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.common.formatting import counted, sized
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest, ManifestObject

from .local_files import LocalFile, scan
from .parallel import WORKERS, TransferProgress, each, workers_for

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

# Bytes. S3 limits a key to 1024 bytes, and the folder's address takes some of them.
_LONGEST_PATH = 900
# Bytes, far above any store's limit. A larger size in a manifest shows that it was altered.
_LARGEST_OBJECT = 1 << 50

log = logging.getLogger(__name__)


def push(
    store: Store,
    folder: Path,
    address: S3Address,
    kind: str,
    run_id: str = "",
    attempt: int = 0,
    details: Mapping[str, Any] | None = None,
    sha256: bool = False,
) -> Manifest:
    """Send a folder, and write its manifest last.

    Objects that the existing manifest at the address already lists are not sent again. That
    manifest is deleted before any object is replaced, so a reader never trusts a mixture.

    Args:
        store: The store.
        folder: The folder to send; hidden files are skipped.
        address: The directory in the store.
        kind: The manifest's kind, for example `code`.
        run_id: The run that writes it.
        attempt: That run's attempt.
        details: Facts for the manifest's readers.
        sha256: Whether the manifest contains each file's SHA-256.

    Returns:
        The manifest now stored at the address.

    Raises:
        DataError: The folder does not exist, is empty, or contains a file `manifest.json`.
        FileChangedError: A file changed during the transfer; no manifest was written.
    """
    files = _local_files(folder)
    existing = manifest_at(store, address)
    sent_before = {entry.key: entry for entry in existing.objects} if existing else {}
    same = same_content(folder, files, sent_before)
    objects = {file.path: sent_before[file.path] for file in same}
    missing = [file for file in files.values() if file.path not in objects]
    digests = {path: _sha256(folder / path) for path in files} if sha256 else {}
    objects = {path: _with_sha256(entry, digests) for path, entry in objects.items()}
    manifest = Manifest.of(kind, objects.values(), run_id, attempt, details)
    if manifest == existing:
        log.info("%s is already stored: %s", address, counted(len(files), "file"))
        return manifest
    probed = store.probe(address)
    if existing:
        store.delete(address / MANIFEST)

    def send(file: LocalFile) -> ManifestObject:
        return store.send(folder / file.path, address / file.path, file.path)

    progress = TransferProgress("sending", len(missing), sum(file.size for file in missing))
    workers = workers_for(probed.latency)
    for file, sent in each(send, missing, workers, progress.tick):
        objects[file.path] = _with_sha256(sent.result(), digests)
        progress.add(file.size)
    manifest = Manifest.of(kind, objects.values(), run_id, attempt, details)
    store.write(address / MANIFEST, manifest.to_bytes(), "application/json")
    log.info(
        "sent %s of %s to %s: %s",
        f"{len(missing):,}",
        counted(len(files), "file"),
        address,
        progress,
    )
    return manifest


def pull(
    store: Store, address: S3Address, folder: Path, only: Callable[[str], bool] | None = None
) -> Manifest:
    """Fetch a directory by its manifest; a file appears only after its bytes are verified.

    Files that are already correct stay, and so do files that the manifest does not name.

    Args:
        store: The store.
        address: The directory in the store.
        folder: The target folder.
        only: Selects the manifest's keys to fetch; None for all of them.

    Returns:
        The manifest; the folder's files have exactly the selected objects' bytes.

    Raises:
        ObjectNotFoundError: There is no manifest, so the directory is not complete.
        DataError: Objects are missing or damaged; the error names all of them.
        ConfigurationError: There is not enough space; nothing was fetched.
    """
    manifest = store.read_manifest(address / MANIFEST)
    keys = [entry.key for entry in manifest.objects]
    DataError.raise_if(names.problems(keys, f"the manifest of {address}"))
    DataError.raise_if(
        Problem(
            f"the manifest of {address} lists an object larger than any store accepts",
            received=f"{entry.key!r:.100} with more than {_LARGEST_OBJECT:,} bytes",
            fix="do not use this manifest: it was altered",
        )
        for entry in manifest.objects
        if entry.size > _LARGEST_OBJECT
    )
    folder.mkdir(parents=True, exist_ok=True)
    selected = {entry.key: entry for entry in manifest.objects if only is None or only(entry.key)}
    correct = {file.path for file in same_content(folder, scan(folder).files, selected)}
    missing = [entry for entry in selected.values() if entry.key not in correct]
    for entry in missing:  # partial files of a killed process take up space
        files.partial_of(names.below(folder, entry.key)).unlink(missing_ok=True)
    _check_space(folder, address, sum(entry.size for entry in missing))

    def fetch(entry: ManifestObject) -> None:
        store.fetch(address / entry.key, folder, entry)

    progress = TransferProgress("fetching", len(missing), sum(entry.size for entry in missing))
    problems: list[Problem | str] = []
    for entry, fetched in each(fetch, missing, WORKERS, progress.tick):
        if isinstance(error := fetched.error, DataError):
            problems += _problems(address / entry.key, error)
        else:
            fetched.result()
            progress.add(entry.size)
    DataError.raise_if(sorted(problems, key=str))
    log.info(
        "fetched %s of %s from %s: %s",
        f"{len(missing):,}",
        counted(len(selected), "file"),
        address,
        progress,
    )
    return manifest


def verify(store: Store, base: S3Address, manifest: Manifest) -> list[Problem]:
    """Verify every object of a manifest.

    Args:
        store: The store.
        base: The directory to which the manifest's keys are relative.
        manifest: The manifest.

    Returns:
        A problem for each missing or different object, sorted by address.
    """

    def check(entry: ManifestObject) -> None:
        store.verify(base / entry.key, entry)

    progress = TransferProgress("verifying", len(manifest.objects), manifest.size)
    problems: list[Problem] = []
    for entry, proof in each(check, manifest.objects, WORKERS, progress.tick):
        if isinstance(error := proof.error, DataError):
            problems += _problems(base / entry.key, error)
        else:
            proof.result()
            progress.add(entry.size)
    log.info(
        "verified %d of %d objects of %s: %s", progress.files, len(manifest.objects), base, progress
    )
    return sorted(problems, key=str)


def manifest_at(store: Store, address: S3Address) -> Manifest | None:
    """Return a directory's manifest; None if it is missing or damaged."""
    try:
        return store.read_manifest(address / MANIFEST)
    except DataError:
        return None


def same_content(
    folder: Path, files: Mapping[str, LocalFile], objects: Mapping[str, ManifestObject]
) -> list[LocalFile]:
    """Return the local files whose bytes equal their objects'.

    Only files of the same size are read. Bytes are compared by their crc64nvme.

    Args:
        folder: The files' folder.
        files: The files, by path.
        objects: Objects, by the path of the local file.
    """
    from kfp_tfjob.storage.checksum import file_crc64nvme

    candidates = [
        file for path, file in files.items() if path in objects and objects[path].size == file.size
    ]
    same = []
    progress = TransferProgress("comparing", len(candidates), sum(file.size for file in candidates))
    checksums = each(
        lambda file: file_crc64nvme(folder / file.path), candidates, tick=progress.tick
    )
    for file, checksum in checksums:
        progress.add(file.size)
        # A file that cannot be read, or no longer exists, is not the same.
        if checksum.error is None and checksum.value == objects[file.path].crc64nvme:
            same.append(file)
    return same


def name_problem(path: str) -> Problem | None:
    """Return the problem of a path that cannot be an S3 key; None if it can."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return Problem(
            "a file name is not UTF-8, so it cannot be an S3 key",
            received=repr(path),
            fix="rename the file",
        )
    if size > _LONGEST_PATH:
        return Problem(
            "a path is too long for an S3 key",
            received=f"{size} bytes, {path[:80]!r}...",
            expected=f"at most {_LONGEST_PATH} bytes below the folder",
            fix="shorten the path",
        )
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_sha256(entry: ManifestObject, digests: Mapping[str, str]) -> ManifestObject:
    return replace(entry, sha256=digests.get(entry.key, entry.sha256))


def _local_files(folder: Path) -> Mapping[str, LocalFile]:
    """Return the files to send by path.

    Raises:
        DataError: The folder cannot be sent; the error names all problems.
    """
    contents = scan(folder, lambda name: not name.startswith("."))
    for path, kind in sorted(contents.skipped.items()):
        log.warning("%r is a %s, so it is not sent", path, kind)
    problems = [
        Problem(
            f"{folder} cannot be read",
            received=error,
            expected="a folder that this process may read",
            fix="correct its permissions, or the path",
        )
        for error in contents.errors
    ]
    if not problems and not contents.files:
        problems.append(
            Problem(
                f"{folder} has no files to send",
                received="no regular file whose name does not begin with a dot",
                expected="at least one file",
                fix="correct the path, or write the files first",
            )
        )
    problems += [problem for path in contents.files if (problem := name_problem(path))]
    if MANIFEST in contents.files:
        problems.append(
            Problem(
                f"{folder} contains a file {MANIFEST}",
                expected="another name, because the store keeps the folder's manifest under this"
                " one",
                fix="rename the file, or move everything into a subfolder",
            )
        )
    DataError.raise_if(problems)
    return contents.files


def _check_space(folder: Path, address: S3Address, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigurationError(
            Problem(
                f"there is not enough space for {address} in {folder}",
                received=f"{sized(free)} free",
                expected=f"{sized(needed)} for the files that are still missing",
                fix="in a pod, raise pod.all.ephemeral_storage; elsewhere, use a folder on a"
                " larger disk",
            )
        )


def _problems(address: S3Address, error: DataError) -> list[Problem]:
    if isinstance(error, ObjectNotFoundError):
        fix = "start the run that wrote it again"
        return [
            Problem(f"{address} is missing", expected="the object that its manifest lists", fix=fix)
        ]
    return error.as_problems
