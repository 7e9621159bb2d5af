"""A model's published versions: their numbers, and whether they are complete.

A version is a folder whose number was claimed with a conditional create. It never changes after its
manifest has been written.

A retry must find the number that its run has claimed, without reading all other runs' claims. So
before a run claims a number, it records the first number that is free at that time. Its own claim
has that number or a later one. Both are read by their keys, because a listing may be late. Called
by publish and by the other modules of the registry.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256

from kfp_tfjob.common.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, VERSION_CLAIM, ModelLayout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order


@dataclass(frozen=True)
class FirstTry:
    """The record of a run's first attempt to claim a version.

    Attributes:
        run_id: The run.
        number: The lowest number that it may have claimed.
    """

    run_id: str
    number: int


def claim(
    store: Store,
    folder: ModelLayout,
    run_id: str,
    task_key: str = "",
    again: bool = False,
    verdict: str = "",
) -> int:
    """Return the version number that a run or task has claimed; claim the next free one if needed.

    Apart from listings, the number of requests does not depend on how many versions exist.

    Args:
        store: The store.
        folder: The model's folder.
        run_id: The run that trained the version.
        task_key: Its task's key; usually empty.
        again: Whether the run was evaluated a second time. It then needs another number, because
            the first verdict's version may be complete, and versions never change.
        verdict: The SHA-256 of a verdict that is not in the run's existing version.
    """
    body: dict[str, str | bool | int] = {"run_id": run_id}
    body |= {"task_key": task_key} if task_key else {}
    body |= {"again": True} if again else {}
    body |= {"verdict": verdict} if verdict else {}
    while True:
        number = _claim(store, folder, run_id, (json.dumps(body) + "\n").encode())
        if not store.has(folder.tombstone(number)):
            return number
        body["after"] = number  # it was pruned, and its number is never used again


def _claim(store: Store, folder: ModelLayout, run_id: str, body: bytes) -> int:
    """Return the number of the version whose claim is `body`; claim the next free one if needed.

    A pruned version still has its claim, so its number may be returned.

    Raises:
        DataError: The record of the first attempt is damaged.
    """
    # A rollback serves old bytes under a new number; the next version is above it.
    free = max((*numbers_of(store, folder), *served_numbers(store, folder)), default=0) + 1
    first = _first_number(store, folder.first_try(sha256(body).hexdigest()), run_id, free)
    claims = in_order(lambda number: _claim_of(store, folder, number), range(first, free))
    for number, existing in claims:
        if existing.result() == body:
            return number
    number = max(first, free)
    while True:
        try:
            # If the run's own claim was missing in the listing, this returns its number, because a
            # create of bytes that already exist succeeds.
            store.create(folder.version(number) / VERSION_CLAIM, body, "application/json")
            return number
        except ObjectExistsError:
            number += 1


def _first_number(store: Store, record: S3Address, run_id: str, free: int) -> int:
    """Return the number in the first attempt's record; create the record with `free` if needed."""
    try:
        store.create(record, documents.to_bytes(FirstTry(run_id, free)), "application/json")
        return free
    except ObjectExistsError:
        stored = store.read(record)
    try:
        return documents.read(FirstTry, stored).number
    except documents.InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{record} is not a valid claim of a version number",
                received=str(error),
                expected="the JSON that publish writes",
                fix="delete this object from the store; the run then publishes under a new number",
            )
        ) from error


def numbers_of(store: Store, folder: ModelLayout) -> list[int]:
    """Return the sorted numbers of all versions, including incomplete and pruned ones."""
    return _folder_numbers(store, folder.versions)


def served_numbers(store: Store, folder: ModelLayout) -> list[int]:
    """Return the sorted numbers of the folders that servers read."""
    return _folder_numbers(store, folder.serving)


def _folder_numbers(store: Store, prefix: S3Address) -> list[int]:
    """Return the sorted numbers of folders; listing them is cheaper than listing all files."""
    return sorted(int(name) for name in store.folders(prefix) if name.isdecimal())


def claimed_by(store: Store, folder: ModelLayout, number: int) -> tuple[str, str]:
    """Return the run id and task key that claimed a version; empty strings if unknown."""
    try:
        body = json.loads(_claim_of(store, folder, number) or b"{}")
        return str(body.get("run_id", "")), str(body.get("task_key", ""))
    except (ValueError, AttributeError):
        return "", ""


def manifest_of(store: Store, version: S3Address) -> Manifest | None:
    """Return a version's manifest; None if the version is not complete.

    Raises:
        DataError: The manifest is damaged.
    """
    try:
        return store.read_manifest(version / MANIFEST)
    except ObjectNotFoundError:
        return None


def _claim_of(store: Store, folder: ModelLayout, number: int) -> bytes | None:
    try:
        return store.read(folder.version(number) / VERSION_CLAIM)
    except ObjectNotFoundError:
        return None
