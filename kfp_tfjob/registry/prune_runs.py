"""Deletes old checkpoints, runs and datasets that are no longer needed.

A run is as old as its newest object. These stay:

- a run whose version exists, without its checkpoints, and the version's dataset;
- verdicts with which `when_unchanged: skip` may save training;
- runs that may still be running, and their datasets.

Before a run uses a dataset, it renews a note and then looks for a tombstone. A prune writes the
tombstone and then looks at the note. So at least one of them sees the other. Called by
`kfp-tfjob runs prune`; prepare_data calls `use_dataset`.
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

from kfp_tfjob.common.errors import DataError, ObjectExistsError, ObjectNotFoundError, Problem
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
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
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.uploader.parallel import each

from . import training_cache
from .champion_records import champions
from .prune_versions import TOMBSTONE_SECONDS, age, clock, delete_all
from .run_folder import find
from .runs import run_ids
from .verdict_record import verdict_in_force
from .versions import claimed_by, numbers_of

log = logging.getLogger(__name__)

# The kinds of deletion, in the order in which a prune does them.
KINDS = ("checkpoints", "training", "run", "dataset")
_CHECKPOINTS, _TRAINING, _RUN, _DATASET = KINDS
_OBJECTS_OF_KIND = {_CHECKPOINTS: RUN_CHECKPOINTS, _TRAINING: RUN_TRAINING}
_WHY = {
    _CHECKPOINTS: "its published version contains the model",
    _TRAINING: "when_unchanged needs only its verdict",
    _RUN: "nothing needs it",
    _DATASET: "nothing needs it",
}
_LONGEST_RUN = timedelta(days=365)  # the longest that train_options allow
_ROUNDED = timedelta(seconds=2)  # a store may round an object's time up
_WAIT = 5.0  # seconds between two looks at a tombstone; a prune deletes a dataset in seconds
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class Deletion:
    """A dataset, a run, or a part of a run, that can be deleted.

    Attributes:
        kind: One of KINDS; `training` is everything that a run has trained, but not its verdict.
        name: The run id, or the dataset's digest.
        why: Why it is not needed.
        files: The number of objects.
        size: Bytes.
        newest: When the newest object of the run or the dataset was written.
        folders: The folders that contain its objects.
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
    """The objects of a run or a dataset, by their keys below its folder.

    `newest` is when the newest object was written.
    """

    folders: set[S3Address] = field(default_factory=set)
    objects: list[tuple[str, Listed]] = field(default_factory=list)
    newest: datetime = datetime.min.replace(tzinfo=UTC)
    is_pruned: bool = False  # by a prune that was killed, or by one that runs now

    def add(self, folder: S3Address, file: Listed) -> None:
        """Add an object in a folder of the run or dataset; a tombstone is only noted."""
        self.folders.add(folder)
        key = file.address.key[len(folder.key) + 1 :]
        if key == PRUNED:
            self.is_pruned = True
        else:
            self.objects.append((key, file))
            self.newest = max(self.newest, file.modified)

    def add_record(self, folder: S3Address, record: Listed) -> None:
        """Add a record that is stored outside the folder."""
        self.folders.add(folder)
        self.objects.append(("", record))
        self.newest = max(self.newest, record.modified)

    @property
    def may_run(self) -> bool:
        """Whether a task began an attempt after the last record of its end or the run's end."""
        begun, ended = dict[str, datetime](), defaultdict[str, datetime](lambda: _Stored.newest)
        for key, file in self.objects:
            *folders, name = key.split("/")
            task = "/".join(folders[:2]) if folders[:1] == [TASKS] else ""
            if RUN_END.fullmatch(key):
                ended[task] = max(ended[task], file.modified)
            elif folders[-1:] == [ATTEMPTS] and (attempt_record(name) or (0, 1))[1] == 0:
                begun[task] = max(begun.get(task, file.modified), file.modified)
        return not self.is_pruned and any(
            at > max(ended[task], ended[""]) for task, at in begun.items()
        )

    def deletion(self, kind: str, name: str) -> Deletion:
        files = [file for key, file in self.objects if _is_of_kind(kind, key)]
        size, folders = sum(file.size for file in files), tuple(sorted(self.folders))
        return Deletion(kind, name, _WHY[kind], len(files), size, self.newest, folders)


def plan(store: Store, layout: Layout, seconds: float) -> list[Deletion]:
    """Return the possible deletions, in the order of KINDS.

    Args:
        store: The store.
        layout: Everything below output_uri.
        seconds: The age that a run or a dataset must have.

    Raises:
        DataError: A champion record is damaged.
    """
    runs, datasets = _objects_of_runs(store, layout), _objects_of_datasets(store, layout)
    all_stored = (*runs.values(), *datasets.values())
    now = _store_time(store, (file for stored in all_stored for _, file in stored.objects))
    before = now - timedelta(seconds=seconds)
    old = {
        run_id: run
        for run_id, run in runs.items()
        if run.newest < (min(before, now - _LONGEST_RUN) if run.may_run else before)
    }
    needed = _Needed()
    for name in store.folders(layout.root / MODELS):
        needed.add(store, layout, name, old)
    kinds = {
        **dict.fromkeys(old, _RUN),
        **dict.fromkeys(needed.compared & old.keys(), _TRAINING),
        **dict.fromkeys(needed.published & old.keys(), _CHECKPOINTS),
    }
    deletions = [run.deletion(kinds[run_id], run_id) for run_id, run in old.items()]
    try:
        # A run that stays, at most without its checkpoints, still needs its dataset.
        kept_runs = (
            run for run_id, run in runs.items() if kinds.get(run_id, "") in ("", _CHECKPOINTS)
        )
        for _, digests in each(lambda run: _dataset_digests(store, run), kept_runs):
            needed.datasets |= digests.result()
    except DataError as error:
        log.warning("no dataset is deleted, because a run may use any of them: %s", error)
        datasets = {}
    for digest, dataset in datasets.items():
        if digest not in needed.datasets and dataset.newest < before:
            deletions.append(dataset.deletion(_DATASET, digest))
    # Without files, only a killed prune's tombstone is left to delete.
    by_name = runs | datasets
    deletions = [
        deletion for deletion in deletions if deletion.files or by_name[deletion.name].is_pruned
    ]
    return sorted(deletions, key=lambda deletion: (KINDS.index(deletion.kind), deletion.name))


def execute(
    store: Store, layout: Layout, planned: Iterable[Deletion]
) -> Iterator[tuple[Deletion, str]]:
    """Do a plan's deletions; yield each with the reason why it was not done, empty if it was.

    Args:
        store: The store.
        layout: Everything below output_uri.
        planned: From `plan`.
    """
    for deletion in planned:
        is_dataset = deletion.kind == _DATASET
        tombstone = {
            _RUN: deletion.folders[0] / PRUNED,
            _DATASET: layout.dataset_tombstone(deletion.name),
        }.get(deletion.kind)
        if tombstone and not _create_tombstone(store, tombstone, alone=is_dataset):
            yield deletion, "another prune began to delete it less than 10 minutes ago"
            continue
        # Listed again after the tombstone, because a run may have used it since the plan was made.
        stored = _Stored()
        for folder in deletion.folders:
            for file in store.list(folder):
                stored.add(folder, file)
        last_use = stored.newest
        if is_dataset:
            last_use = max(last_use, _used_at(store, layout, deletion.name))
        if last_use > deletion.newest + _ROUNDED:
            if tombstone:
                store.delete(tombstone)
            yield deletion, "it has been used since the plan was made"
            continue
        addresses = [
            file.address for key, file in stored.objects if _is_of_kind(deletion.kind, key)
        ]
        # A folder without its manifest is incomplete for every reader, so manifests go first.
        delete_all(store, (address for address in addresses if address.name == MANIFEST))
        addresses.sort(key=lambda address: f"/{CHECKPOINTS}/" not in address.key)
        delete_all(store, (address for address in addresses if address.name != MANIFEST))
        if is_dataset:
            store.delete(layout.dataset_in_use(deletion.name))
        if tombstone:
            store.delete(tombstone)
        if deletion.kind == _RUN:
            # The record of its folder goes last, because the next prune finds the rest through it.
            store.delete(layout.folder_record(deletion.name))
        yield deletion, ""


def use_dataset(store: Store, layout: Layout, digest: str, run_id: str) -> None:
    """Write the note that a run uses a dataset, if it exists; wait while a prune deletes it."""
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
            log.info("waiting until a prune has deleted dataset %s", digest)
            time.sleep(_WAIT)


def _is_of_kind(kind: str, key: str) -> bool:
    """Return whether a deletion of this kind includes the object with this key."""
    return kind not in _OBJECTS_OF_KIND or bool(_OBJECTS_OF_KIND[kind].fullmatch(key))


def _create_tombstone(store: Store, tombstone: S3Address, alone: bool) -> bool:
    """Write a tombstone; return False if another prune has just written it.

    Args:
        store: The store.
        tombstone: Its address.
        alone: Whether only one prune may delete this at a time. Otherwise, an existing tombstone is
            replaced.
    """
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
        return _Stored.newest


def _store_time(store: Store, objects: Iterable[Listed]) -> datetime:
    """Return the time by the store's clock; it is read from the response for any of the objects."""
    for file in objects:
        try:
            return clock(store.head(file.address))
        except ObjectNotFoundError:
            continue  # it was deleted since it was listed
    return datetime.now(UTC)


def _objects_of_runs(store: Store, layout: Layout) -> dict[str, _Stored]:
    """Return all runs' objects by run id, wherever output_uri puts the runs' folders."""
    top, runs = layout.root / RUNS, defaultdict[str, _Stored](_Stored)
    # The runs with a folder record: address and run id by the folder's key.
    by_folder: dict[str, tuple[S3Address, str]] = {}
    recorded_ids, _ = run_ids(store, layout)
    for run_id, outcome in each(lambda run_id: find(store, layout, run_id).base, recorded_ids):
        try:
            by_folder[outcome.result().key] = outcome.result(), run_id
        except DataError as error:
            log.warning("a run is kept, because it cannot be read: %s", error)
    records = {layout.folder_record(run_id): base for base, run_id in by_folder.values()}
    for file in store.list(top):
        if base := records.get(file.address):
            runs[by_folder[base.key][1]].add_record(base, file)
            continue
        parts = file.address.key[len(top.key) + 1 :].split("/")
        parents = (f"{top.key}/{'/'.join(parts[:end])}" for end in range(1, len(parts)))
        folder, run_id = next(
            (by_folder[parent] for parent in parents if parent in by_folder),
            (top / parts[0], parts[0]),
        )
        # Other objects stay: their run's folder record is damaged or lost.
        if folder.key in by_folder or RUN_OBJECT.fullmatch("/".join(parts[1:])):
            runs[run_id].add(folder, file)
    return runs


def _objects_of_datasets(store: Store, layout: Layout) -> dict[str, _Stored]:
    """Return all datasets' objects by digest, each with the note of its last use."""
    top, datasets = layout.root / DATASETS, defaultdict[str, _Stored](_Stored)
    for file in store.list(top):
        digest = file.address.key[len(top.key) + 1 :].partition("/")[0]
        # The digest, if this object is a tombstone or the note of a dataset's last use.
        noted = file.address.name.removesuffix(".json")
        if _DIGEST.fullmatch(digest):
            datasets[digest].add(top / digest, file)
        elif file.address == layout.dataset_tombstone(noted):
            datasets[noted].folders.add(top / noted)
            datasets[noted].is_pruned = True
        elif file.address == layout.dataset_in_use(noted):
            datasets[noted].add_record(top / noted, file)
    return datasets


@dataclass
class _Needed:
    """The objects that models need.

    Attributes:
        published: Ids of runs with a version.
        compared: Ids of runs whose verdict a later run may use instead of training.
        datasets: Digests of datasets.
    """

    published: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)

    def add(self, store: Store, layout: Layout, name: str, old: Collection[str]) -> None:
        """Add the runs and datasets that a model needs.

        Args:
            store: The store.
            layout: Everything below output_uri.
            name: The model.
            old: The ids of the runs whose verdicts are read.
        """
        folder = layout.model(name)
        existing = set(numbers_of(store, folder)) - set(store.numbers(folder.tombstones))
        records = {record.number: record for record in champions(store, layout, name)}
        for record in records.values():
            if record.version in existing:
                self.published.add(record.run_id)
                self.datasets.add(record.dataset_digest)
        for number in existing:
            self.published.add(claimed_by(store, folder, number)[0])
            verdict = _read_json(store, folder.version(number) / VERDICT)
            self.datasets.add(str(verdict.get("dataset_digest")))

        def reusable_run(digest: str) -> str:
            """Return the id of the run whose verdict applies to these inputs; empty without one."""
            run = training_cache.newest(store, layout, name, digest)
            if not run or run.run_id not in old:
                return ""
            try:
                verdict = verdict_in_force(store, RunLayout(S3Address.parse(run.run_uri)))
            except DataError:  # without its verdict, it cannot be reused
                return ""
            # The record of the model that it published, or of the champion that it lost to.
            number = verdict.met + verdict.blessed
            champion = records.get(number)
            applies = not number or (champion and champion.version in existing)
            return run.run_id if applies else ""

        for _, run_id in each(reusable_run, store.folders(folder.trained)):
            self.compared.add(run_id.result())


def _dataset_digests(store: Store, run: _Stored) -> set[str]:
    """Return the digests of the datasets in a run's task claims and verdicts."""
    digests = set()
    for key, file in run.objects:
        *_, folder, name = f"/{key}".split("/")
        if folder == ATTEMPTS and (attempt_record(name) or (0, 1))[1] == 0:
            inputs = _read_json(store, file.address).get("inputs") or {}
            digests.add(str(inputs.get("data", "")).rpartition("/")[2])
        elif (folder, name) == (EVALUATION, VERDICT):
            digests.add(str(_read_json(store, file.address).get("dataset_digest")))
    return digests


def _read_json(store: Store, address: S3Address) -> dict[str, Any]:
    """Return a record as a dict, whichever release wrote it; empty if it does not exist.

    Raises:
        DataError: The record is damaged.
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
                fix="restore it from a backup; do not delete it, because it names what is in use",
            )
        ) from error
