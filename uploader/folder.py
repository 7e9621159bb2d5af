"""Sends, fetches and verifies a whole folder by its manifest.

Every step imports this module, so it imports heavy modules only where it uses them.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_tfjob.storage import files, names
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.formatting import counted, sized
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest, ManifestObject
from kfp_tfjob.uploader.local_files import LocalFile, scan
from kfp_tfjob.uploader.parallel import WORKERS, TransferProgress, each, workers_for

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

# bytes; a key may have 1024, and the folder's address takes some of them.
_LONGEST_PATH = 900
_LARGEST_OBJECT = 1 << 50  # bytes

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

    Objects that a manifest at the address already proves are not sent again. That manifest is
    deleted before any object is replaced, so a reader never trusts a mixture.

    Args:
        store: The store.
        folder: The folder to send; hidden files are left out.
        address: The directory in the store.
        kind: The kind of the manifest, for example `code`.
        run_id: The run that writes it.
        attempt: The attempt of that run.
        details: Facts for readers of the manifest.
        sha256: Put the SHA-256 of each file into the manifest.

    Returns:
        The manifest now stored at the address.

    Raises:
        DataError: The folder does not exist, is empty, or contains a file `manifest.json`.
        FileChangedError: A file changed during the transfer; no manifest was written.
    """
    files = _local_files(folder)
    there = manifest_at(store, address)
    known = {item.key: item for item in there.objects} if there else {}
    objects = {file.path: known[file.path] for file in same_content(folder, files, known)}
    missing = [file for file in files.values() if file.path not in objects]
    digests = {path: _sha256(folder / path) for path in files} if sha256 else {}
    objects = {path: _with_sha256(item, digests) for path, item in objects.items()}
    manifest = Manifest.of(kind, objects.values(), run_id, attempt, details)
    if manifest == there:
        log.info("%s is already stored: %s", address, counted(len(files), "file"))
        return manifest
    probed = store.probe(address)
    if there:
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
        only: Selects keys of the manifest; None for all of them.

    Returns:
        The manifest; the folder has exactly the bytes of the selected objects.

    Raises:
        ObjectNotFoundError: There is no manifest, so the directory is not complete.
        DataError: Objects are missing or damaged; the error names all of them.
        ConfigurationError: There is not enough space; nothing was fetched.
    """
    manifest = store.read_manifest(address / MANIFEST)
    keys = [item.key for item in manifest.objects]
    DataError.raise_if(names.problems(keys, f"the manifest of {address}"))
    DataError.raise_if(
        Problem(
            f"the manifest of {address} lists an object larger than any store accepts",
            received=f"{item.key!r:.100} with more than {_LARGEST_OBJECT:,} bytes",
            fix="do not use this manifest: it was altered",
        )
        for item in manifest.objects
        if item.size > _LARGEST_OBJECT
    )
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {item.key: item for item in manifest.objects if only is None or only(item.key)}
    right = {file.path for file in same_content(folder, scan(folder).files, wanted)}
    missing = [item for item in wanted.values() if item.key not in right]
    for item in missing:  # partial files of a killed process take up space
        files.partial_of(names.below(folder, item.key)).unlink(missing_ok=True)
    _check_space(folder, address, sum(item.size for item in missing))

    def fetch(item: ManifestObject) -> None:
        store.fetch(address / item.key, folder, item)

    progress = TransferProgress("fetching", len(missing), sum(item.size for item in missing))
    problems: list[Problem | str] = []
    for item, fetched in each(fetch, missing, WORKERS, progress.tick):
        if isinstance(error := fetched.error, DataError):
            problems += _problems(address / item.key, error)
        else:
            fetched.result()
            progress.add(item.size)
    DataError.raise_if(sorted(problems, key=str))
    log.info(
        "fetched %s of %s from %s: %s",
        f"{len(missing):,}",
        counted(len(wanted), "file"),
        address,
        progress,
    )
    return manifest


def verify(store: Store, base: S3Address, manifest: Manifest) -> list[Problem]:
    """Verify every object of a manifest.

    Args:
        store: The store.
        base: The directory that the keys of the manifest are relative to.
        manifest: Names the objects.

    Returns:
        The problems of missing and different objects, sorted by address.
    """

    def prove(item: ManifestObject) -> None:
        store.prove(base / item.key, item)

    progress = TransferProgress("verifying", len(manifest.objects), manifest.size)
    problems: list[Problem] = []
    for item, proof in each(prove, manifest.objects, WORKERS, progress.tick):
        if isinstance(error := proof.error, DataError):
            problems += _problems(base / item.key, error)
        else:
            proof.result()
            progress.add(item.size)
    log.info(
        "verified %d of %d objects of %s: %s", progress.files, len(manifest.objects), base, progress
    )
    return sorted(problems, key=str)


def manifest_at(store: Store, address: S3Address) -> Manifest | None:
    """Return the manifest of a directory, or None if there is no readable one."""
    try:
        return store.read_manifest(address / MANIFEST)
    except DataError:
        return None


def same_content(
    folder: Path, files: Mapping[str, LocalFile], known: Mapping[str, ManifestObject]
) -> list[LocalFile]:
    """Return the local files that have the same bytes as the known objects at their paths.

    Args:
        folder: The folder of the files.
        files: The files, by path.
        known: Objects, by the path of the matching file.
    """
    from kfp_tfjob.storage.checksum import file_crc64nvme

    alike = [
        file for path, file in files.items() if path in known and known[path].size == file.size
    ]
    found = []
    progress = TransferProgress("comparing", len(alike), sum(file.size for file in alike))
    sums = each(lambda file: file_crc64nvme(folder / file.path), alike, tick=progress.tick)
    for file, checksum in sums:
        progress.add(file.size)
        # A file that cannot be read, or no longer exists, is not the same.
        if checksum.error is None and checksum.value == known[file.path].crc64nvme:
            found.append(file)
    return found


def name_problem(path: str) -> Problem | None:
    """Return why a path cannot be a key in S3, or None."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        what = "a file name is not UTF-8, so it cannot be an S3 key"
        return Problem(what, received=repr(path), fix="rename the file")
    if size > _LONGEST_PATH:
        what = "a path is too long for an S3 key"
        expected = f"at most {_LONGEST_PATH} bytes below the folder"
        return Problem(what, f"{size} bytes, {path[:80]!r}...", expected, "shorten the path")
    return None


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_sha256(item: ManifestObject, digests: Mapping[str, str]) -> ManifestObject:
    return replace(item, sha256=digests.get(item.key, item.sha256))


def _local_files(folder: Path) -> Mapping[str, LocalFile]:
    """Return the files to send, or raise the problems of the folder."""
    found = scan(folder, lambda name: not name.startswith("."))
    for path, kind in sorted(found.skipped.items()):
        log.warning("%r is a %s, so it is not sent", path, kind)
    problems = [
        Problem(
            f"{folder} cannot be read",
            received=error,
            expected="a folder that this process may read",
            fix="correct its permissions, or the path",
        )
        for error in found.errors
    ]
    if not problems and not found.files:
        problems.append(
            Problem(
                f"{folder} has no files to send",
                received="no regular file whose name does not begin with a dot",
                expected="at least one file",
                fix="correct the path, or write the files first",
            )
        )
    problems += [problem for path in found.files if (problem := name_problem(path))]
    if MANIFEST in found.files:
        problems.append(
            Problem(
                f"{folder} contains a file {MANIFEST}",
                expected="another name, because the store keeps the folder's manifest under this"
                " one",
                fix="rename the file, or move everything into a subfolder",
            )
        )
    DataError.raise_if(problems)
    return found.files


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
