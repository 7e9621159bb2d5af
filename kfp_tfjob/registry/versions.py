"""The published versions of a model: their numbers, and whether they are complete.

A version is a folder whose number was claimed with a conditional create. It never changes once its
manifest is there.

A retry must find the number that its run has claimed, without reading the claims of all other runs.
So a run records, before it claims anything, the first number that was free then. Its own claim has
that number or one of the next. Both are read by their keys, because a listing may be late.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256

from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.layout import MANIFEST, VERSION_CLAIM, ModelLayout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order


@dataclass(frozen=True)
class FirstTry:
    """The record of a run's first try to claim a version.

    Attributes:
        run_id: The run.
        number: The lowest number that it may have claimed.
    """

    run_id: str
    number: int


def claim(
    store: Store,
    place: ModelLayout,
    run_id: str,
    task_key: str = "",
    again: bool = False,
    verdict: str = "",
) -> int:
    """Return the version number of a run or task: the one it has, or the next free one.

    The number of requests does not depend on how many versions there are, apart from listings.

    Args:
        store: The store.
        place: The model.
        run_id: The run that trained the version.
        task_key: Its task's key; usually empty.
        again: Whether the run was evaluated a second time: the version of its first verdict may be
            complete, and versions never change.
        verdict: The SHA-256 of a verdict that is not in the version that the run has.
    """
    body: dict[str, str | bool | int] = {"run_id": run_id}
    body |= {"task_key": task_key} if task_key else {}
    body |= {"again": True} if again else {}
    body |= {"verdict": verdict} if verdict else {}
    while True:
        number = _claim(store, place, run_id, (json.dumps(body) + "\n").encode())
        if not store.has(place.tombstone(number)):
            return number
        body["after"] = number  # it was pruned, and its number is never used again


def _claim(store: Store, place: ModelLayout, run_id: str, wanted: bytes) -> int:
    """Return the number of the version that has these bytes as its claim, pruned or not.

    Raises:
        DataError: The record of the first try is damaged.
    """
    # A rollback serves old bytes under a new number; the next version is above it.
    free = max((*numbers_of(store, place), *served_numbers(store, place)), default=0) + 1
    first = _first_number(store, place.first_try(sha256(wanted).hexdigest()), run_id, free)
    for number, found in in_order(lambda it: _claim_of(store, place, it), range(first, free)):
        if found.result() == wanted:
            return number
    number = max(first, free)
    while True:
        try:
            # An own claim that the listing lacks has the same bytes, so this finds it, too.
            store.create(place.version(number) / VERSION_CLAIM, wanted, "application/json")
            return number
        except ObjectExistsError:
            number += 1


def _first_number(store: Store, record: S3Address, run_id: str, free: int) -> int:
    """Return the number in the record of the first try; create it with `free` if there is none."""
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
                f"{record} is not the record of a claim",
                received=str(error),
                fix="remove it; the run then publishes under a new number",
            )
        ) from error


def numbers_of(store: Store, place: ModelLayout) -> list[int]:
    """Return the sorted numbers of all versions, complete or not, pruned ones too."""
    return _folder_numbers(store, place.versions)


def served_numbers(store: Store, place: ModelLayout) -> list[int]:
    """Return the sorted numbers of the folders for servers."""
    return _folder_numbers(store, place.serving)


def _folder_numbers(store: Store, prefix: S3Address) -> list[int]:
    """Return the sorted numbers of folders; their listing is shorter than that of all files."""
    return sorted(int(name) for name in store.folders(prefix) if name.isdecimal())


def claimed_by(store: Store, place: ModelLayout, number: int) -> tuple[str, str]:
    """Return the run and the key of the task that claimed a version; empty if it is not known."""
    try:
        body = json.loads(_claim_of(store, place, number) or b"{}")
        return str(body.get("run_id", "")), str(body.get("task_key", ""))
    except (ValueError, AttributeError):
        return "", ""


def manifest_of(store: Store, version: S3Address) -> Manifest | None:
    """Return a version's manifest; None if the version is not complete.

    Raises:
        DataError: There is one, and it is damaged.
    """
    try:
        return store.read_manifest(version / MANIFEST)
    except ObjectNotFoundError:
        return None


def _claim_of(store: Store, place: ModelLayout, number: int) -> bytes | None:
    try:
        return store.read(place.version(number) / VERSION_CLAIM)
    except ObjectNotFoundError:
        return None
