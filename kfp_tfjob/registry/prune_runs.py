"""Deletes old runs and the datasets that nothing needs any more.

Of a run, its verdict stays: champions name it, and `train_options.when_unchanged` reads it. Models
are not touched; they have copies of all they need. Only objects with the names of this project are
listed, so other files below the same prefix stay.

A killed prune is finished by the next one: the records that a run has ended go last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from kfp_tfjob.registry.prune import delete_folder
from kfp_tfjob.registry.records import champions
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import (
    ATTEMPTS,
    CODE,
    DATASETS,
    EVALUATION,
    MANIFEST,
    MODELS,
    NOTICES,
    OUTPUT,
    REPLICA_LOGS,
    RUNS,
    SECOND_VERDICT,
    TASKS,
    VERDICT,
    Layout,
    RunLayout,
    attempt_record,
)
from kfp_tfjob.storage.run_folder import find
from kfp_tfjob.storage.store import Listed, Store
from kfp_tfjob.storage.verdict_record import ModelVerdict
from kfp_tfjob.uploader.parallel import each

# Below the folder of a run, or of a task with a key in it.
_FOLDERS = {ATTEMPTS, CODE, OUTPUT, EVALUATION, NOTICES, REPLICA_LOGS}
_VERDICTS = {f"{EVALUATION}/{VERDICT}", f"{EVALUATION}/{SECOND_VERDICT}"}
_ENDS = {"failure.json", "unchanged.json", "not_evaluated.json"}
_FILES = _ENDS | {MANIFEST, "failure.md", "data_report.html"}
_DATASET = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Old:
    """A run or a dataset that can be deleted.

    Attributes:
        what: `run` or `dataset`.
        name: The run id, or the digest of the dataset.
        folder: Its address.
        written: When its newest object was written.
        files: How many objects go.
        size: Their bytes.
    """

    what: str
    name: str
    folder: S3Address
    written: datetime
    files: int
    size: int


@dataclass(frozen=True)
class RunsPlan:
    """What a prune would do.

    Attributes:
        candidates: What it would delete, the runs first.
        kept: Why other old runs and datasets stay, by what they are and their name.
    """

    candidates: tuple[Old, ...]
    kept: dict[str, str]


def plan(store: Store, layout: Layout, before: datetime, unfinished_before: datetime) -> RunsPlan:
    """Return what can be deleted.

    Args:
        store: The store.
        layout: Everything below output_uri.
        before: Runs and datasets that were written to since then stay.
        unfinished_before: Runs that have not ended, and were written to since then, stay: they may
            wait in a queue.

    Raises:
        DataError: A record is damaged.
    """
    candidates, kept, needed = [], {}, _of_models(store, layout)
    needs_unknown = ""
    for run_id, (run, objects) in sorted(_runs(store, layout).items()):
        newest = max(it.modified for it in objects)
        ended = any(_inner(run.base, it.address) in _ENDS | _VERDICTS for it in objects)
        if newest < before and (ended or newest < unfinished_before):
            gone = [it for it in objects if _inner(run.base, it.address) not in _VERDICTS]
            if gone:
                candidates.append(_old("run", run_id, run.base, newest, gone))
            continue
        if newest < before:
            kept[f"run {run_id}"] = "has no record of its end"
        datasets = set(_datasets(store, run, objects))
        needed |= datasets
        if not (datasets or ended):
            needs_unknown = run_id
    for digest, objects in sorted(_by_digest(store, layout).items()):
        newest = max(it.modified for it in objects)
        if newest >= before:
            continue
        if digest in needed:
            kept[f"dataset {digest}"] = "a champion or a run needs it"
        elif needs_unknown:
            kept[f"dataset {digest}"] = f"run {needs_unknown} has begun and may use it"
        else:
            folder = layout.dataset(digest)
            candidates.append(_old("dataset", digest, folder, newest, objects))
    return RunsPlan(tuple(candidates), kept)


def execute(
    store: Store, layout: Layout, before: datetime, unfinished_before: datetime
) -> Iterator[Old]:
    """Delete what `plan` names, and yield each when it is gone; arguments as of `plan`."""
    for it in plan(store, layout, before, unfinished_before).candidates:
        if it.what == "dataset":
            delete_folder(store, it.folder, first=MANIFEST)
        else:
            objects = [one for one in store.list(it.folder) if _is_of_run(it.folder, one.address)]
            if any(one.modified >= before for one in objects):
                continue  # a person has just started it again
            _delete_run(store, layout, it, [one.address for one in objects])
        yield it


def _delete_run(store: Store, layout: Layout, it: Old, objects: list[S3Address]) -> None:
    gone = [one for one in objects if _inner(it.folder, one) not in _VERDICTS]
    ends = [one for one in gone if _inner(it.folder, one) in _ENDS]
    for group in ([one for one in gone if one not in ends], ends):
        for _, deleted in each(store.delete, group):
            deleted.result()
    if len(gone) == len(objects):  # with a verdict, its folder must be found
        store.delete(layout.folder_record(it.name))


def _old(what: str, name: str, folder: S3Address, newest: datetime, gone: list[Listed]) -> Old:
    return Old(what, name, folder, newest, len(gone), sum(it.size for it in gone))


def _runs(store: Store, layout: Layout) -> dict[str, tuple[RunLayout, list[Listed]]]:
    """Return the folder and the objects of every run, wherever output_uri has put it."""
    ids = [it.address.name.removesuffix(".json") for it in store.list(layout.folder_records)]
    places = each(lambda run_id: find(store, layout, run_id).base, ids)
    placed = {outcome.result(): run_id for run_id, outcome in places}
    top = layout.root / RUNS
    found: dict[str, tuple[RunLayout, list[Listed]]] = {}
    for item in store.list(top):
        names = item.address.key[len(top.key) + 1 :].split("/")
        folders = [top / "/".join(names[:depth]) for depth in range(1, len(names))]
        if not folders:
            continue
        base = next((it for it in folders if it in placed), folders[0])
        if _is_of_run(base, item.address):
            run_id = placed.get(base, base.name)
            found.setdefault(run_id, (RunLayout(base), []))[1].append(item)
    return found


def _inner(base: S3Address, address: S3Address) -> str:
    """Return the path of an object below the folder of a run, or of the task that it belongs to."""
    path = address.key[len(base.key) + 1 :]
    return path.split("/", 2)[-1] if path.startswith(f"{TASKS}/") else path


def _is_of_run(base: S3Address, address: S3Address) -> bool:
    first, _, rest = _inner(base, address).partition("/")
    return first in _FOLDERS if rest else first in _FILES


def _datasets(store: Store, run: RunLayout, objects: list[Listed]) -> Iterator[str]:
    """Yield the digests of the datasets of a run, by its verdicts and the claims of attempts."""
    for it in objects:
        folder, _, name = _inner(run.base, it.address).partition("/")
        if (folder, name) == (EVALUATION, VERDICT):
            yield ModelVerdict.read(store, it.address).dataset_digest
        elif folder == ATTEMPTS and attempt_record(name):
            inputs = documents.parse(store.read(it.address)).get("inputs") or {}
            if data := inputs.get("data"):
                yield str(data)


def _of_models(store: Store, layout: Layout) -> set[str]:
    """Return the digests of the datasets of all versions that were a champion and are there."""
    found = set()
    for name in store.folders(layout.root / MODELS):
        pruned = set(store.numbers(layout.model(name).tombstones))
        records = champions(store, layout, name)
        found |= {it.dataset_digest for it in records if it.version not in pruned}
    return found


def _by_digest(store: Store, layout: Layout) -> dict[str, list[Listed]]:
    top = layout.root / DATASETS
    found: dict[str, list[Listed]] = {}
    for item in store.list(top):
        digest, _, rest = item.address.key[len(top.key) + 1 :].partition("/")
        if rest and _DATASET.fullmatch(digest):
            found.setdefault(digest, []).append(item)
    return found
