"""Deletes versions that are no longer needed: after a tombstone, the manifest, then other files.

It keeps the champion, the champions that a rollback may need, versions that a run may be about to
promote, and every record. A pruned version's number is never used again.

A rollback and a prune of the same version cannot both succeed. Each first writes its own note
(`promotion.py` a hold, this module a tombstone), and then stops if it sees the other's. Decisive
records are read by their keys, because a listing may be late. Called by `kfp-tfjob models prune`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from kfp_tfjob.common.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, SAVED_MODEL, VERSION_CLAIM, Layout, ModelLayout
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.uploader.parallel import each

from .champion import Champion, read_record
from .champion_records import champions
from .promotion import Hold
from .rollback import walk_back
from .versions import claimed_by

# Holds of earlier releases do not name a record, so only their age shows that they are void.
_OLD_HOLD_SECONDS = 3600
# The prune that wrote a tombstone checks the version again and may still withdraw the tombstone. An
# older tombstone was left by a prune that was killed.
TOMBSTONE_SECONDS = 600


@dataclass(frozen=True)
class Tombstone:
    """The record that a version was pruned.

    Attributes:
        run_id: The run that published the version.
        by: Who pruned it.
        at: When, in UTC.
        why: Why it was not needed.
    """

    run_id: str
    by: str
    at: str
    why: str


@dataclass(frozen=True)
class Candidate:
    """A version, or a folder that servers read, that can be deleted.

    Attributes:
        version: The version; 0 for a folder for servers.
        serving: The number of a folder for servers; 0 for a version.
        why: Why it is not needed.
        files: The number of objects.
        size: Bytes.
    """

    version: int
    serving: int
    why: str
    files: int
    size: int


@dataclass(frozen=True)
class PruningPlan:
    """The versions that a prune would delete and keep.

    Attributes:
        model_name: The model.
        candidates: The versions and folders for servers to delete.
        kept: The reason why each other version stays, by its number.
    """

    model_name: str
    candidates: tuple[Candidate, ...]
    kept: dict[int, str]


def plan(
    store: Store, layout: Layout, model_name: str, keep: int, hours: float = 24
) -> PruningPlan:
    """Return a model's versions that can be deleted, and the reasons why the others stay.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        keep: The number of earlier champions to keep for a rollback, at least 1.
        hours: How long a version that was never the champion stays after its claim, because its run
            may be about to promote it.

    Raises:
        DataError: A champion record is damaged.
    """
    folder = layout.model(model_name)
    records = _all_records(store, layout, model_name)
    reasons, newest_record = _needed(records, keep), records[0].number if records else 0
    promoted = {record.version for record in records}
    candidates = []
    for number, objects in sorted(_objects_by_number(store, folder.versions).items()):
        # A pruned version's claim stays, so that its number is never used again.
        files = [file for file in objects if file.address.name != VERSION_CLAIM]
        pruned = store.has(folder.tombstone(number))
        if number in reasons or (pruned and not files):
            continue
        if _held_for(store, folder, number) > newest_record:
            reasons[number] = "is about to become the champion"
        elif number in promoted or pruned:
            why = "left over from a pruned version" if pruned else "an earlier champion"
            candidates.append(_candidate(number, serving=0, why=why, files=files or objects))
        elif (seconds := age(store, _first(folder.version(number), objects))) < hours * 3600:
            reasons[number] = f"may be in flight: it began {seconds / 3600:.1f} h ago"
        elif not files:
            reasons[number] = "is a number without files"
        else:
            complete = any(file.address == folder.version(number) / MANIFEST for file in files)
            why = "it was never the champion" if complete else "it was never completed"
            candidates.append(_candidate(number, serving=0, why=why, files=files))
    # Servers read the second newest until they have loaded the newest.
    needed = {record.served_as for record in records[:2]}
    for number, objects in sorted(_objects_by_number(store, folder.serving).items()):
        if number not in needed and number < max(needed, default=0):
            why = "servers read a higher number"
            candidates.append(_candidate(0, serving=number, why=why, files=objects))
    return PruningPlan(model_name, tuple(candidates), reasons)


def execute(
    store: Store, layout: Layout, planned: PruningPlan, keep: int, by: str
) -> Iterator[tuple[Candidate, str]]:
    """Delete a plan's candidates; yield each with the reason why it was kept, empty if deleted.

    Args:
        store: The store.
        layout: Everything below output_uri.
        planned: From `plan`; each version is checked again after its tombstone was written.
        keep: As for `plan`.
        by: The person who prunes, for the history.
    """
    folder = layout.model(planned.model_name)
    records = _all_records(store, layout, planned.model_name)
    for candidate in planned.candidates:
        if candidate.serving:
            _delete_folder(store, folder.servable(candidate.serving), first=SAVED_MODEL)
            yield candidate, ""
            continue
        run_id, _ = claimed_by(store, folder, candidate.version)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = Tombstone(run_id, by, now, candidate.why)
        body = (json.dumps(asdict(record), indent=1) + "\n").encode()
        created, tombstone = True, folder.tombstone(candidate.version)
        try:
            store.create(tombstone, body, "application/json")
        except ObjectExistsError:
            created = False  # by a prune that was killed, or by one that runs at the same time
        # Read before the records, because a hold is deleted once its record exists.
        hold = _held_for(store, folder, candidate.version)
        records = [*_later_records(store, layout, planned.model_name, records), *records]
        needed, newest = _needed(records, keep), records[0].number if records else 0
        why = needed.get(
            candidate.version, "is about to become the champion" if hold > newest else ""
        )
        if why and created:
            store.delete(tombstone)
        elif not why and not created and age(store, tombstone) < TOMBSTONE_SECONDS:
            why = "was marked by another prune less than 10 minutes ago"
        if why:
            yield candidate, f"version {candidate.version} is kept: it {why}"
            continue
        _delete_folder(store, folder.version(candidate.version), first=MANIFEST, keep=VERSION_CLAIM)
        yield candidate, ""


def read_tombstone(store: Store, folder: ModelLayout, number: int) -> Tombstone:
    """Return a pruned version's tombstone.

    Raises:
        DataError: The tombstone is damaged.
    """
    address = folder.tombstone(number)
    content = store.read(address)
    try:
        return documents.read(Tombstone, content)
    except documents.InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{address} is not the record of a pruned version",
                received=str(error),
                expected="the JSON that `kfp-tfjob models prune` writes",
                fix="remove it; `kfp-tfjob models prune` then reconsiders the version",
            )
        ) from error


def _needed(records: list[Champion], keep: int) -> dict[int, str]:
    """Return the versions that must stay, each with the reason.

    Args:
        records: All champion records, the newest first.
        keep: The number of earlier champions to keep.
    """
    if not records:
        return {}
    now, earlier, most = records[0], records[1:], max(keep, 1)
    newest = dict.fromkeys(record.version for record in earlier if record.version != now.version)
    # A rollback that follows another one goes back further than the newest versions.
    rollback_targets = dict.fromkeys(record.version for record in walk_back(now, earlier))
    needed = [*list(newest)[:most], *list(rollback_targets)[:most]]
    reasons = dict.fromkeys(needed, "may be restored by a rollback")
    return {now.version: "is the champion"} | reasons


def _held_for(store: Store, folder: ModelLayout, version: int) -> float:
    """Return the number of the champion record that a version's hold names; 0 without a hold.

    If no record has that number or a higher one, the version is about to become the champion.
    """
    address = folder.hold(version)
    try:
        return documents.read(Hold, store.read(address)).champion
    except ObjectNotFoundError:
        return 0
    except documents.InvalidDocumentError:
        return math.inf if age(store, address) < _OLD_HOLD_SECONDS else 0


def _all_records(store: Store, layout: Layout, model_name: str) -> list[Champion]:
    """Return all champion records, the newest first."""
    listed = list(champions(store, layout, model_name))
    return [*_later_records(store, layout, model_name, listed), *listed]


def _later_records(
    store: Store, layout: Layout, model_name: str, records: list[Champion]
) -> list[Champion]:
    """Return the champion records that follow these, the newest first.

    They are read by their keys, because a listing may lack the newest ones.
    """
    newer: list[Champion] = []
    number = records[0].number if records else 0
    while True:
        number += 1
        try:
            newer.insert(0, read_record(store, layout, model_name, number))
        except ObjectNotFoundError:
            return newer


def _objects_by_number(store: Store, prefix: S3Address) -> dict[int, list[Listed]]:
    """Return all objects in the numbered folders below a prefix, by the folder's number."""
    objects: dict[int, list[Listed]] = {}
    start = len(prefix.key) + 1
    for file in store.list(prefix):
        number = file.address.key[start:].partition("/")[0]
        if number.isdecimal():
            objects.setdefault(int(number), []).append(file)
    return objects


def _candidate(version: int, serving: int, why: str, files: list[Listed]) -> Candidate:
    return Candidate(version, serving, why, len(files), sum(file.size for file in files))


def _first(version: S3Address, objects: list[Listed]) -> S3Address:
    """Return a version's claim, which is its first object; any other object without a claim."""
    addresses = [file.address for file in objects]
    return claim if (claim := version / VERSION_CLAIM) in addresses else addresses[0]


def age(store: Store, address: S3Address) -> float:
    """Return the seconds since an object was written, by the store's clock; 0 without the object.

    Both times are the store's, because this machine's clock may differ from it by minutes.
    """
    try:
        response = store.head(address)
    except ObjectNotFoundError:
        return 0.0
    return (clock(response) - response["LastModified"]).total_seconds()


def clock(response: dict[str, Any]) -> datetime:
    """Return the time of a store's response, by the store's clock if it sent one."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    return parsedate_to_datetime(date) if date else datetime.now(UTC)


def _delete_folder(store: Store, folder: S3Address, first: str, keep: str = "") -> None:
    """Delete a folder's objects except `keep`; once `first` is gone, readers ignore the folder."""
    store.delete(folder / first)
    files = (file.address for file in store.list(folder))
    delete_all(store, (address for address in files if address != folder / keep))


def delete_all(store: Store, objects: Iterable[S3Address]) -> None:
    """Delete objects, several at a time."""
    for _, deleted in each(store.delete, objects):
        deleted.result()
