"""Finds the runs that evaluated a model.

A template in output_uri may put a run's folder anywhere below the root, so each such run has a
record of its folder. A run without a record is in `runs/<run_id>`. Called by `kfp-tfjob runs
prune`, `tensorboard` and the `models` commands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.storage.layout import RUNS, Layout, RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.parallel import each

from .champion_records import champions
from .run_folder import find
from .verdict_record import ModelVerdict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run that evaluated a model, or one of its tasks with a key.

    Attributes:
        name: The run id and the key; with the prefix `v7-` if it was published as version 7.
        run: Its folder.
        at: When its verdict was stored.
    """

    name: str
    run: RunLayout
    at: datetime


def run_ids(store: Store, layout: Layout) -> tuple[set[str], set[str]]:
    """Return the ids of runs with a folder record, and the ids of all runs."""
    recorded = {
        record.address.name.removesuffix(".json") for record in store.list(layout.folder_records)
    }
    return recorded, recorded | set(store.folders(layout.root / RUNS))


def runs_of(store: Store, layout: Layout, model_name: str) -> list[EvaluatedRun]:
    """Return the runs that evaluated a model, the newest first.

    Args:
        store: The store.
        layout: Everything below output_uri.
        model_name: The model.
    """
    versions = {
        champion.trained_by: champion.version for champion in champions(store, layout, model_name)
    }
    recorded, ids = run_ids(store, layout)

    def evaluated(run_id: str) -> list[EvaluatedRun]:
        try:
            run = find(store, layout, run_id) if run_id in recorded else layout.run(run_id)
        except DataError as error:
            log.warning("run %s is skipped: %s", run_id, error)
            return []
        return list(_evaluated_tasks(store, run, model_name, run_id, versions))

    runs = [run for _, outcome in each(evaluated, sorted(ids)) for run in outcome.result()]
    return sorted(runs, key=lambda run: run.at, reverse=True)


def _evaluated_tasks(
    store: Store,
    run: RunLayout,
    model_name: str,
    run_id: str,
    versions: dict[tuple[str, str], int],
) -> Iterator[EvaluatedRun]:
    """Yield the run's tasks that evaluated the model; a usual run is one task with an empty key."""
    for key in ("", *store.folders(run.tasks)):
        task = run.task(key)
        try:
            verdict = ModelVerdict.read(store, task.verdict)
            evaluated_at = store.head(task.verdict)["LastModified"]
        except DataError:
            continue  # not evaluated yet, or a folder that is not a run
        if verdict.model_name == model_name:
            version = versions.get((run_id, key))
            name = "-".join(filter(None, (f"v{version}" if version else "", run_id, key)))
            yield EvaluatedRun(name, task, evaluated_at)
