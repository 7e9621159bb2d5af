"""Deletes old checkpoints, runs and datasets that are no longer needed.

A run is as old as its newest object. What stays:

- all but the checkpoints of a run whose version exists, and the version's dataset;
- the verdicts with which `when_unchanged: skip` may save a training;
- runs that may still be running, and their datasets.

Before a run uses a dataset, it renews a note and then looks for a tombstone. A prune writes the
tombstone and then looks at the note. So one of them sees the other.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.prune_versions import TOMBSTONE_SECONDS, age, clock, delete_all
from kfp_tfjob.registry.runs import run_ids
from kfp_tfjob.registry.versions import claimed_by, numbers_of
from kfp_tfjob.storage import documents, training_cache
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage.layout import (
    ATTEMPTS,
    CHECKPOINTS,
    DATASETS,
    EVALUATION,
    MANIFEST,
    MODELS,
    PRUNED,
    RUN_CHECKPOINTS,
    RUN_END,
    RUN_OBJECT,
    RUN_TRAINING,
    RUNS,
    TASKS,
    VERDICT,
    Layout,
    RunLayout,
    attempt_record,
)
from kfp_tfjob.storage.run_folder import find
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.storage.verdict_record import verdict_in_force
from kfp_tfjob.uploader.parallel import each

log = logging.getLogger(__name__)

# What a prune deletes, in this order.
KINDS = ("checkpoints", "training", "run", "dataset")
_CHECKPOINTS, _TRAINING, _RUN, _DATASET = KINDS
_OF_KIND = {_CHECKPOINTS: RUN_CHECKPOINTS, _TRAINING: RUN_TRAINING}
_WHY = {
    _CHECKPOINTS: "its published version contains the model",
    _TRAINING: "when_unchanged needs only its verdict",
    _RUN: "nothing needs it",
    _DATASET: "nothing needs it",
}
_LONGEST_RUN = timedelta(days=365)  # the longest that train_options allow
_ROUNDED = timedelta(seconds=2)  # a store may round the time of an object up
_WAIT = 5.0  # seconds
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Deletion:
    """What can be deleted of a run, or a dataset.

    Attributes:
        kind: One of KINDS; `training` is all that a run has trained, without its verdict.
        name: The run id, or the dataset's digest.
        why: Why it is not needed.
        files: How many objects.
        size: Bytes.
        newest: When the newest object of the run or the dataset was written.
        folders: Where its objects are.
    """

    kind: str
    name: str
    why: str
    files: int
    size: int
    newest: datetime
    folders: tuple[S3Address, ...]


@dataclass
class _Stored:
    """The objects of a run or a dataset, by their keys below its folder."""

    folders: set[S3Address] = field(default_factory=set)
    objects: list[tuple[str, Listed]] = field(default_factory=list)
    at: datetime = datetime.min.replace(tzinfo=UTC)
    is_pruned: bool = False  # by a prune that was killed, or one at this moment

    def add(self, folder: S3Address, item: Listed) -> None:
        self.folders.add(folder)
        key = item.address.key[len(folder.key) + 1 :]
        if key == PRUNED:
            self.is_pruned = True
        else:
            self.objects.append((key, item))
            self.at = max(self.at, item.modified)

    def add_record(self, folder: S3Address, item: Listed) -> None:
        """Add a record that is not in the folder."""
        self.folders.add(folder)
        self.objects.append(("", item))
        self.at = max(self.at, item.modified)

    @property
    def may_run(self) -> bool:
        """Whether a task began an attempt after the last record of how it or the run ended."""
        begun, ended = dict[str, datetime](), defaultdict[str, datetime](lambda: _Stored.at)
        for key, it in self.objects:
            *folders, name = key.split("/")
            task = "/".join(folders[:2]) if folders[:1] == [TASKS] else ""
            if RUN_END.fullmatch(key):
                ended[task] = max(ended[task], it.modified)
            elif folders[-1:] == [ATTEMPTS] and (attempt_record(name) or (0, 1))[1] == 0:
                begun[task] = max(begun.get(task, it.modified), it.modified)
        return not self.is_pruned and any(
            at > max(ended[task], ended[""]) for task, at in begun.items()
        )

    def deletion(self, kind: str, name: str) -> Deletion:
        part = [it for key, it in self.objects if _is_of(kind, key)]
        size, folders = sum(it.size for it in part), tuple(sorted(self.folders))
        return Deletion(kind, name, _WHY[kind], len(part), size, self.at, folders)


def plan(store: Store, layout: Layout, seconds: float) -> list[Deletion]:
    """Return what can be deleted, in the order of KINDS.

    Args:
        store: The store.
        layout: Everything below output_uri.
        seconds: How old a run or a dataset must be.

    Raises:
        DataError: A champion record is damaged.
    """
    runs, datasets = _runs(store, layout), _datasets(store, layout)
    now = _now(store, (it for run in (*runs.values(), *datasets.values()) for _, it in run.objects))
    before = now - timedelta(seconds=seconds)
    old = {
        run_id: run
        for run_id, run in runs.items()
        if run.at < (min(before, now - _LONGEST_RUN) if run.may_run else before)
    }
    needed = _Needed()
    for name in store.folders(layout.root / MODELS):
        needed.add(store, layout, name, old)
    kinds = {
        **dict.fromkeys(old, _RUN),
        **dict.fromkeys(needed.compared & old.keys(), _TRAINING),
        **dict.fromkeys(needed.published & old.keys(), _CHECKPOINTS),
    }
    found = [run.deletion(kinds[run_id], run_id) for run_id, run in old.items()]
    try:
        kept = (run for run_id, run in runs.items() if kinds.get(run_id, "") in ("", _CHECKPOINTS))
        for _, digests in each(lambda run: _datasets_of(store, run), kept):
            needed.datasets |= digests.result()
    except DataError as error:
        log.warning("no dataset is deleted, because a run may use any of them: %s", error)
        datasets = {}
    for digest, dataset in datasets.items():
        if digest not in needed.datasets and dataset.at < before:
            found.append(dataset.deletion(_DATASET, digest))
    stored = runs | datasets
    found = [it for it in found if it.files or stored[it.name].is_pruned]
    return sorted(found, key=lambda it: (KINDS.index(it.kind), it.name))


def execute(
    store: Store, layout: Layout, planned: Iterable[Deletion]
) -> Iterator[tuple[Deletion, str]]:
    """Delete what a plan names, and yield each with why it was not deleted; empty if it was.

    Args:
        store: The store.
        layout: Everything below output_uri.
        planned: From `plan`.
    """
    for it in planned:
        tombstone = {
            _RUN: it.folders[0] / PRUNED,
            _DATASET: layout.dataset_tombstone(it.name),
        }.get(it.kind)
        if tombstone and not _mark(store, tombstone, it.kind == _DATASET):
            yield it, "another prune began to delete it less than 10 minutes ago"
            continue
        stored = _Stored()
        for folder in it.folders:
            for item in store.list(folder):
                stored.add(folder, item)
        at = max(stored.at, _used_at(store, layout, it.name)) if it.kind == _DATASET else stored.at
        if at > it.newest + _ROUNDED:
            if tombstone:
                store.delete(tombstone)
            yield it, "it has been used since the plan was made"
            continue
        found = [item.address for key, item in stored.objects if _is_of(it.kind, key)]
        delete_all(store, (address for address in found if address.name == MANIFEST))
        found.sort(key=lambda address: f"/{CHECKPOINTS}/" not in address.key)
        delete_all(store, (address for address in found if address.name != MANIFEST))
        if it.kind == _DATASET:
            store.delete(layout.dataset_in_use(it.name))
        if tombstone:
            store.delete(tombstone)
        if it.kind == _RUN:
            store.delete(layout.folder_record(it.name))  # last: without it, the rest is not found
        yield it, ""


def use_dataset(store: Store, layout: Layout, digest: str, run_id: str) -> None:
    """Note that a run uses a dataset, if it exists; wait while a prune deletes it."""
    tombstone = layout.dataset_tombstone(digest)
    note = json.dumps({"run_id": run_id}).encode()
    while True:
        if next(store.list(layout.dataset(digest)), None):
            store.write(layout.dataset_in_use(digest), note, "application/json")
        if not store.has(tombstone):
            return
        if age(store, tombstone) > TOMBSTONE_SECONDS:  # of a prune that was killed
            store.delete(tombstone)
        else:
            log.info("a prune is deleting dataset %s; wait until it has finished", digest)
            time.sleep(_WAIT)


def _is_of(kind: str, key: str) -> bool:
    return kind not in _OF_KIND or bool(_OF_KIND[kind].fullmatch(key))


def _mark(store: Store, tombstone: S3Address, alone: bool) -> bool:
    """Write a tombstone; return False if another prune has just done so and must be alone."""
    body = json.dumps({"prune": uuid.uuid4().hex}).encode()
    try:
        store.create(tombstone, body, "application/json")
    except ObjectExistsError:
        if alone and age(store, tombstone) < TOMBSTONE_SECONDS:
            return False
        store.write(tombstone, body, "application/json")
    return True


def _used_at(store: Store, layout: Layout, digest: str) -> datetime:
    try:
        return store.head(layout.dataset_in_use(digest))["LastModified"]
    except ObjectNotFoundError:
        return _Stored.at


def _now(store: Store, objects: Iterable[Listed]) -> datetime:
    """Return the time by the clock of the store."""
    for it in objects:
        try:
            return clock(store.head(it.address))
        except ObjectNotFoundError:
            continue  # it has just been deleted
    return datetime.now(UTC)


def _runs(store: Store, layout: Layout) -> dict[str, _Stored]:
    """Return the objects of all runs, wherever output_uri puts their folders."""
    top, found = layout.root / RUNS, defaultdict[str, _Stored](_Stored)
    placed: dict[str, tuple[S3Address, str]] = {}
    for run_id, outcome in each(lambda it: find(store, layout, it).base, run_ids(store, layout)[0]):
        try:
            placed[outcome.result().key] = outcome.result(), run_id
        except DataError as error:
            log.warning("a run is kept, because it cannot be read: %s", error)
    records = {layout.folder_record(run_id): base for base, run_id in placed.values()}
    for item in store.list(top):
        if base := records.get(item.address):
            found[placed[base.key][1]].add_record(base, item)
            continue
        parts = item.address.key[len(top.key) + 1 :].split("/")
        above = (f"{top.key}/{'/'.join(parts[:end])}" for end in range(1, len(parts)))
        folder, run_id = next(
            (placed[it] for it in above if it in placed), (top / parts[0], parts[0])
        )
        # What another folder has is of a run whose record is damaged or lost.
        if folder.key in placed or RUN_OBJECT.fullmatch("/".join(parts[1:])):
            found[run_id].add(folder, item)
    return found


def _datasets(store: Store, layout: Layout) -> dict[str, _Stored]:
    """Return the objects of all datasets, each with the note of its last use, by digest."""
    top, found = layout.root / DATASETS, defaultdict[str, _Stored](_Stored)
    for item in store.list(top):
        digest = item.address.key[len(top.key) + 1 :].partition("/")[0]
        noted = item.address.name.removesuffix(".json")
        if _DIGEST.fullmatch(digest):
            found[digest].add(top / digest, item)
        elif item.address == layout.dataset_tombstone(noted):
            found[noted].folders.add(top / noted)
            found[noted].is_pruned = True
        elif item.address == layout.dataset_in_use(noted):
            found[noted].add_record(top / noted, item)
    return found


@dataclass
class _Needed:
    """What models need: runs with a version, runs whose verdict counts, and datasets."""

    published: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)

    def add(self, store: Store, layout: Layout, name: str, old: Collection[str]) -> None:
        """Add what a model needs.

        Args:
            store: The store.
            layout: Everything below output_uri.
            name: The model.
            old: The runs whose verdict is looked at.
        """
        place = layout.model(name)
        there = set(numbers_of(store, place)) - set(store.numbers(place.tombstones))
        records = {it.number: it for it in champions(store, layout, name)}
        for it in records.values():
            if it.version in there:
                self.published.add(it.run_id)
                self.datasets.add(it.dataset_digest)
        for number in there:
            self.published.add(claimed_by(store, place, number)[0])
            verdict = _json(store, place.version(number) / VERDICT)
            self.datasets.add(str(verdict.get("dataset_digest")))

        def counts(digest: str) -> str:
            """Return the run whose verdict a run with these inputs would use; or nothing."""
            run = training_cache.newest(store, layout, name, digest)
            if not run or run.run_id not in old:
                return ""
            try:
                verdict = verdict_in_force(store, RunLayout(S3Address.parse(run.run_uri)))
            except DataError:
                return ""
            number = verdict.met + verdict.blessed  # the model it published, or lost to
            met = records.get(number)
            return run.run_id if not number or (met and met.version in there) else ""

        for _, outcome in each(counts, store.folders(place.trained)):
            self.compared.add(outcome.result())


def _datasets_of(store: Store, run: _Stored) -> set[str]:
    """Return the digests of the datasets that a run has used, by its claims and its verdicts."""
    found = set()
    for key, item in run.objects:
        *_, folder, name = f"/{key}".split("/")
        if folder == ATTEMPTS and (attempt_record(name) or (0, 1))[1] == 0:
            inputs = _json(store, item.address).get("inputs") or {}
            found.add(str(inputs.get("data", "")).rpartition("/")[2])
        elif (folder, name) == (EVALUATION, VERDICT):
            found.add(str(_json(store, item.address).get("dataset_digest")))
    return found


def _json(store: Store, address: S3Address) -> dict[str, Any]:
    """Return a record of any version; empty if there is none.

    Raises:
        DataError: It is damaged.
    """
    try:
        return documents.parse_object(store.read(address))
    except ObjectNotFoundError:
        return {}
    except documents.InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"{address} is damaged",
                received=str(error),
                expected="a JSON object",
                fix="restore it from a backup, or remove it",
            )
        ) from error
