"""Finds the runs that evaluated a model, wherever output_uri puts their folders."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.layout import RUNS, Layout, RunLayout
from kfp_tfjob.storage.run_folder import find
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import ModelVerdict
from kfp_tfjob.uploader.parallel import each

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, or a task with a key in it, that evaluated a model.

    Attributes:
        name: The run id and the key; before them `v7-` if it was published as version 7.
        run: Its folder.
        at: When its verdict was stored.
    """

    name: str
    run: RunLayout
    at: datetime


def run_ids(store: Store, layout: Layout) -> tuple[set[str], set[str]]:
    """Return the ids of the runs with a record of their folder, and those of all runs."""
    placed = {it.address.name.removesuffix(".json") for it in store.list(layout.folder_records)}
    return placed, placed | set(store.folders(layout.root / RUNS))


def runs_of(store: Store, layout: Layout, model_name: str) -> list[EvaluatedRun]:
    """Return the runs that evaluated a model, the newest first.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
    """
    versions = {it.trained_by: it.version for it in champions(store, layout, model_name)}
    placed, ids = run_ids(store, layout)

    def evaluated(run_id: str) -> list[EvaluatedRun]:
        try:
            run = find(store, layout, run_id) if run_id in placed else layout.run(run_id)
        except DataError as error:
            log.warning("run %s is skipped: %s", run_id, error)
            return []
        return list(_of_run(store, run, model_name, run_id, versions))

    found = [it for _, outcome in each(evaluated, sorted(ids)) for it in outcome.result()]
    return sorted(found, key=lambda it: it.at, reverse=True)


def _of_run(
    store: Store,
    run: RunLayout,
    model_name: str,
    run_id: str,
    versions: dict[tuple[str, str], int],
) -> Iterator[EvaluatedRun]:
    for key in ("", *store.folders(run.tasks)):
        task = run.task(key)
        try:
            verdict = ModelVerdict.read(store, task.verdict)
            at = store.head(task.verdict)["LastModified"]
        except DataError:
            continue  # not evaluated yet, or a folder that is not a run
        if verdict.model_name == model_name:
            version = versions.get((run_id, key))
            name = "-".join(filter(None, (f"v{version}" if version else "", run_id, key)))
            yield EvaluatedRun(name, task, at)
