"""The published versions of a model: their numbers, and whether they are complete.

A version is a folder whose number was claimed with a conditional create. It never changes once its
manifest is there.
"""

from __future__ import annotations

import json

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ObjectExistsError, ObjectNotFoundError
from kfp_tfjob.storage.layout import MANIFEST, VERSION_CLAIM, ModelLayout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import in_order


def claim(
    store: Store,
    place: ModelLayout,
    run_id: str,
    task_key: str = "",
    again: bool = False,
    verdict: str = "",
) -> int:
    """Return the version number of a run or task: the one it has, or the next free one.

    Args:
        store: The store.
        place: The model.
        run_id: The run that trained the version.
        task_key: Its task's key; usually empty.
        again: Whether the run was evaluated a second time: the version of its first verdict may be
            complete, and versions never change.
        verdict: The SHA-256 of a verdict that is not in the version that the run has.
    """
    body: dict[str, str | bool] = {"run_id": run_id}
    body |= {"task_key": task_key} if task_key else {}
    body |= {"again": True} if again else {}
    body |= {"verdict": verdict} if verdict else {}
    wanted = (json.dumps(body) + "\n").encode()
    taken = numbers_of(store, place)
    pruned = set(store.numbers(place.tombstones))
    kept = [number for number in reversed(taken) if number not in pruned]
    for number, found in in_order(lambda it: _claim_of(store, place, it), kept):
        if found.result() == wanted:
            return number
    # A rollback serves old bytes under a new number; the next version is above it.
    number = max((*taken, *store.numbers(place.serving)), default=0) + 1
    while True:
        try:
            store.create(place.version(number) / VERSION_CLAIM, wanted, "application/json")
            return number
        except ObjectExistsError:
            number += 1


def numbers_of(store: Store, place: ModelLayout) -> list[int]:
    """Return the sorted numbers of all versions, complete or not, pruned ones too."""
    # A listing of folders is shorter than one of all their files.
    return sorted(int(name) for name in store.folders(place.versions) if name.isdecimal())


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
