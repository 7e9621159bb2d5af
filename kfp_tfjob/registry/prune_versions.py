"""Deletes versions that are no longer needed: first a tombstone, then the manifest, then the rest.

What stays: the champion, the champions that a rollback may need, versions that a run may be about
to promote, and every record. The number of a pruned version is never used again.

A rollback and a prune of the same version cannot both succeed. Each writes its own note first
(`promotion.py` a hold, this module a tombstone), and stops if it then finds the other's. What is
decisive is read by its key, because a listing may be late.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.promotion import Hold
from kfp_tfjob.registry.rollback import walk_back
from kfp_tfjob.registry.versions import claimed_by
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_record
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.layout import MANIFEST, SAVED_MODEL, VERSION_CLAIM, Layout, ModelLayout
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.uploader.parallel import each

_OLD_HOLD_SECONDS = 3600  # holds of earlier versions do not say when they are void
TOMBSTONE_SECONDS = 600  # until then, the prune that wrote it may take it back


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
    """A version, or a folder for servers, that can be deleted.

    Attributes:
        version: The version; 0 for a folder for servers.
        serving: The number of a folder for servers; 0 for a version.
        why: Why it is not needed.
        files: How many objects.
        size: Bytes.
    """

    version: int
    serving: int
    why: str
    files: int
    size: int


@dataclass(frozen=True)
class PruningPlan:
    """What a prune would do.

    Attributes:
        model_name: The model.
        candidates: What it would delete.
        kept: Why each other version stays, by its number.
    """

    model_name: str
    candidates: tuple[Candidate, ...]
    kept: dict[int, str]


def plan(
    store: Store, layout: Layout, model_name: str, keep: int, hours: float = 24
) -> PruningPlan:
    """Return what can be deleted of a model.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
        keep: How many earlier champions stay for a rollback, at least 1.
        hours: A version that was never the champion stays so long after its claim: its run may be
            about to promote it.

    Raises:
        DataError: A champion record is damaged.
    """
    place = layout.model(model_name)
    records = _all(store, layout, model_name)
    kept, newest = _needed(records, keep), records[0].number if records else 0
    ever = {it.version for it in records}
    objects = _by_number(store, place.versions)
    candidates = []
    for number, found in sorted(objects.items()):
        there = [it for it in found if it.address.name != VERSION_CLAIM or len(found) == 1]
        pruned = store.has(place.tombstone(number))
        if number in kept or (pruned and all(it.address.name == VERSION_CLAIM for it in found)):
            continue
        if _held_for(store, place, number) > newest:
            kept[number] = "is about to become the champion"
        elif number in ever or pruned:
            why = "left over from a pruned version" if pruned else "an earlier champion"
            candidates.append(_candidate(number, 0, why, there))
        elif (old := age(store, _first(place.version(number), found))) < hours * 3600:
            kept[number] = f"may be in flight: it began {old / 3600:.1f} h ago"
        elif not any(it.address.name != VERSION_CLAIM for it in found):
            kept[number] = "is a number without files"
        else:
            complete = any(it.address == place.version(number) / MANIFEST for it in found)
            why = "it was never the champion" if complete else "it was never completed"
            candidates.append(_candidate(number, 0, why, there))
    needed = {it.served_as for it in records[:2]}  # a server may still be loading the newest
    for number, found in sorted(_by_number(store, place.serving).items()):
        if number not in needed and number < max(needed, default=0):
            candidates.append(_candidate(0, number, "servers read a higher number", found))
    return PruningPlan(model_name, tuple(candidates), kept)


def execute(
    store: Store, layout: Layout, planned: PruningPlan, keep: int, by: str
) -> Iterator[tuple[Candidate, str]]:
    """Delete what a plan names, and yield each with why it was not deleted; empty if it was.

    Args:
        store: The store.
        layout: Everything below output_uri.
        planned: From `plan`; each version is checked again after its tombstone was written.
        keep: As for `plan`.
        by: Who does it.
    """
    place = layout.model(planned.model_name)
    records = _all(store, layout, planned.model_name)
    for it in planned.candidates:
        if it.serving:
            _delete(store, place.servable(it.serving), first=SAVED_MODEL)
            yield it, ""
            continue
        run_id, _ = claimed_by(store, place, it.version)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        body = (json.dumps(asdict(Tombstone(run_id, by, now, it.why)), indent=1) + "\n").encode()
        mine, tombstone = True, place.tombstone(it.version)
        try:
            store.create(tombstone, body, "application/json")
        except ObjectExistsError:
            mine = False  # of a prune that was killed, or of one at the same time
        # Before the records: a hold goes after its record is there.
        held = _held_for(store, place, it.version)
        records = [*_later(store, layout, planned.model_name, records), *records]
        needed, newest = _needed(records, keep), records[0].number if records else 0
        why = needed.get(it.version, "is about to become the champion" if held > newest else "")
        if why and mine:
            store.delete(tombstone)
        elif not why and not mine and age(store, tombstone) < TOMBSTONE_SECONDS:
            why = "was marked by another prune less than 10 minutes ago"
        if why:
            yield it, f"version {it.version} is kept: it {why}"
            continue
        _delete(store, place.version(it.version), first=MANIFEST, but=VERSION_CLAIM)
        yield it, ""


def read_tombstone(store: Store, place: ModelLayout, number: int) -> Tombstone:
    """Return the record of a pruned version.

    Raises:
        DataError: It is damaged.
    """
    address = place.tombstone(number)
    data = store.read(address)
    try:
        return documents.read(Tombstone, data)
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
    """Return why champions are needed, by version.

    Args:
        records: All champion records, the newest first.
        keep: How many earlier ones stay.
    """
    if not records:
        return {}
    now, earlier, most = records[0], records[1:], max(keep, 1)
    newest = dict.fromkeys(it.version for it in earlier if it.version != now.version)
    # After a rollback, the next one goes further back than the versions that were left.
    before = dict.fromkeys(it.version for it in walk_back(now, earlier))
    needed = [*list(newest)[:most], *list(before)[:most]]
    return {now.version: "is the champion"} | {it: "may be restored by a rollback" for it in needed}


def _held_for(store: Store, place: ModelLayout, version: int) -> float:
    """Return the number of the champion record that a version is held for; 0 without a hold.

    The version is about to become the champion unless a record has that number or a higher one.
    """
    address = place.hold(version)
    try:
        return documents.read(Hold, store.read(address)).champion
    except ObjectNotFoundError:
        return 0
    except documents.InvalidDocumentError:
        return math.inf if age(store, address) < _OLD_HOLD_SECONDS else 0


def _all(store: Store, layout: Layout, model_name: str) -> list[Champion]:
    """Return all champion records, the newest first."""
    listed = list(champions(store, layout, model_name))
    return [*_later(store, layout, model_name, listed), *listed]


def _later(store: Store, layout: Layout, model_name: str, known: list[Champion]) -> list[Champion]:
    """Return the records after the newest known one, the newest first."""
    found: list[Champion] = []
    number = known[0].number if known else 0
    while True:
        number += 1
        try:
            found.insert(0, read_record(store, layout, model_name, number))
        except ObjectNotFoundError:
            return found


def _by_number(store: Store, prefix: S3Address) -> dict[int, list[Listed]]:
    found: dict[int, list[Listed]] = {}
    start = len(prefix.key) + 1
    for item in store.list(prefix):
        number = item.address.key[start:].partition("/")[0]
        if number.isdecimal():
            found.setdefault(int(number), []).append(item)
    return found


def _candidate(version: int, serving: int, why: str, found: list[Listed]) -> Candidate:
    return Candidate(version, serving, why, len(found), sum(it.size for it in found))


def _first(version: S3Address, found: list[Listed]) -> S3Address:
    """Return the claim of a version, which is its first object; another one without it."""
    there = [it.address for it in found]
    return claim if (claim := version / VERSION_CLAIM) in there else there[0]


def age(store: Store, address: S3Address) -> float:
    """Return the seconds since an object was written, both times by the clock of the store."""
    try:
        reply = store.head(address)
    except ObjectNotFoundError:
        return 0.0
    return (clock(reply) - reply["LastModified"]).total_seconds()


def clock(reply: dict[str, Any]) -> datetime:
    """Return the time at which a store replied, by its own clock."""
    date = reply["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    return parsedate_to_datetime(date) if date else datetime.now(UTC)


def _delete(store: Store, folder: S3Address, first: str, but: str = "") -> None:
    """Delete a folder; without the first object, no reader uses the rest."""
    store.delete(folder / first)
    delete_all(store, (it.address for it in store.list(folder) if it.address != folder / but))


def delete_all(store: Store, objects: Iterable[S3Address]) -> None:
    """Delete objects, several at once."""
    for _, deleted in each(store.delete, objects):
        deleted.result()
