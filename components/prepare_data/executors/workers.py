"""Gives prepare_data the workers that `data_options.workers` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kfp_tfjob.cluster.choice import is_local
from kfp_tfjob.components.prepare_data.executors.executor import Executor, Recipe
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.masking import hide
from kfp_tfjob.jobs.secret_values import secrets_in
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.storage.store import Store


def workers_in(data_options: Any) -> int:
    """Return `data_options.workers`; 0 if the options are wrong, which other checks report."""
    try:
        return parse(DataOptions, "data_options", data_options).workers
    except ConfigurationError:
        return 0


def workers_of(
    step: Step, data_options: Mapping[str, Any], pod: Mapping[str, Any], storage_secret: str
) -> Callable[[Recipe, Store], Executor] | None:
    """Return what makes the executor with the workers of a step; None without workers.

    Args:
        step: The run and its store.
        data_options: As in the form, like all that follow.
        pod: `pod.prepare` sizes the pods of the workers.
        storage_secret: Name of the Secret.

    Raises:
        ConfigurationError: `pod` is wrong.
    """
    count = workers_in(data_options)
    if not count:
        return None
    from kfp_tfjob.components.prepare_data.executors.distributed import Distributed

    if is_local():
        from kfp_tfjob.components.prepare_data.executors.local_workers import LocalWorkers

        return lambda recipe, store: Distributed(recipe, LocalWorkers(count), store)
    from kfp_tfjob.components.prepare_data.executors.cluster_workers import ClusterWorkers
    from kfp_tfjob.components.prepare_data.executors.worker_job import worker_job

    job = worker_job(parse(PodOptions, "pod", pod), count, storage_secret)
    assert job
    hide(secrets_in(pod))  # the pods have these variables, and their lines are printed
    return lambda recipe, store: Distributed(recipe, ClusterWorkers(step, job), store)
