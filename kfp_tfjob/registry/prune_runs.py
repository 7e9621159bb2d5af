"""Deletes old runs and the datasets that nothing needs any more.

Of a run, its verdict stays: champions name it, and `train_options.when_unchanged` reads it. Models
are not touched; they have copies of all they need. Only objects with the names of this project are
listed, so other files below the same prefix stay.

A killed prune is finished by the next one: the records that a run has ended go last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from kfp_tfjob.registry.records import champions
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import (
    ATTEMPTS,
    CODE,
    DATA_REPORT,
    DATASETS,
    EVALUATION,
    FAILURE_JSON,
    FAILURE_PAGE,
    MANIFEST,
    MODELS,
    NOT_EVALUATED,
    NOTICES,
    OUTPUT,
    REPLICA_LOGS,
    RUNS,
    SECOND_VERDICT,
    TASKS,
    UNCHANGED,
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
_ENDS = {FAILURE_JSON, UNCHANGED, NOT_EVALUATED}
_FILES = _ENDS | {MANIFEST, FAILURE_PAGE, DATA_REPORT}
_DATASET = re.compile(r"[0-9a-f]{32}")
Groups = list[list[Listed]]  # of objects, each of which is deleted after the one before


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
    found, kept = _planned(store, layout, before, unfinished_before)
    return RunsPlan(tuple(it for it, _ in found), kept)


def execute(
    store: Store, layout: Layout, before: datetime, unfinished_before: datetime
) -> Iterator[Old]:
    """Delete what `plan` names, and yield each when it is gone; arguments as of `plan`."""
    found, _ = _planned(store, layout, before, unfinished_before)
    for it, groups in found:
        if any(one.modified >= before for one in store.list(it.folder)):
            continue  # it has just been started again
        for group in groups:
            for _, deleted in each(store.delete, [one.address for one in group]):
                deleted.result()
        yield it


def _planned(
    store: Store, layout: Layout, before: datetime, unfinished_before: datetime
) -> tuple[list[tuple[Old, Groups]], dict[str, str]]:
    """Return what can be deleted, with its objects in their order, and why the rest stays."""
    found: list[tuple[Old, Groups]] = []
    kept: dict[str, str] = {}
    needed = _of_models(store, layout)
    unknown = ""  # a run that may use any dataset
    for run_id, (run, objects) in sorted(_runs(store, layout).items()):
        newest = max(it.modified for it in objects)
        ended = any(_inner(run.base, it.address) in _ENDS | _VERDICTS for it in objects)
        if newest < before and (ended or newest < unfinished_before):
            groups = _groups_of_run(layout, run.base, objects)
            if any(groups):
                found.append((_old("run", run_id, run.base, newest, groups), groups))
            continue
        if newest < before:
            kept[f"run {run_id}"] = "has no record of its end"
        datasets = set(_datasets(store, run, objects))
        needed |= datasets
        if not (datasets or ended):
            unknown = run_id
    for digest, objects in sorted(_by_digest(store, layout).items()):
        newest = max(it.modified for it in objects)
        if newest >= before:
            continue
        if digest in needed:
            kept[f"dataset {digest}"] = "a champion or a run needs it"
        elif unknown:
            kept[f"dataset {digest}"] = f"run {unknown} has begun and may use it"
        else:
            folder = layout.dataset(digest)
            proof = [it for it in objects if it.address == folder / MANIFEST]
            groups = [proof, [it for it in objects if it not in proof]]
            found.append((_old("dataset", digest, folder, newest, groups), groups))
    return found, kept


def _old(what: str, name: str, folder: S3Address, newest: datetime, groups: Groups) -> Old:
    going = [it for group in groups for it in group]
    return Old(what, name, folder, newest, len(going), sum(it.size for it in going))


def _groups_of_run(layout: Layout, base: S3Address, objects: list[Listed]) -> Groups:
    """Return what goes of a run: the records of its end, and then of its folder, go last."""
    groups: Groups = [[], [], []]
    verdicts = False
    for it in objects:
        path = _inner(base, it.address)
        if path in _VERDICTS:
            verdicts = True
        elif it.address == layout.folder_record(base.name):
            groups[2].append(it)
        else:
            groups[path in _ENDS].append(it)
    return groups[:2] if verdicts else groups  # the folder of a verdict must be found


def _runs(store: Store, layout: Layout) -> dict[str, tuple[RunLayout, list[Listed]]]:
    """Return the folder and the objects of every run, wherever output_uri has put it."""
    records = {
        it.address.name.removesuffix(".json"): it for it in store.list(layout.folder_records)
    }
    places = each(lambda run_id: find(store, layout, run_id), records)
    placed = {run_id: outcome.result() for run_id, outcome in places}
    found = {run_id: (run, [records[run_id]]) for run_id, run in placed.items()}
    bases = {run.base for run in placed.values()}
    top = layout.root / RUNS
    for item in store.list(top):
        names = item.address.key[len(top.key) + 1 :].split("/")
        folders = [top / "/".join(names[:depth]) for depth in range(1, len(names))]
        if not folders:
            continue
        base = next((it for it in folders if it in bases), folders[0])
        if _is_of_run(base, item.address):
            found.setdefault(base.name, (RunLayout(base), []))[1].append(item)
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
        with suppress(ValueError, AttributeError):  # a damaged record names none
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
