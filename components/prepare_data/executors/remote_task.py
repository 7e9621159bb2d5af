"""Runs a task in a process of a worker, within a deadline."""

from __future__ import annotations

import json
import logging
import os
import threading

from kfp_tfjob.components.prepare_data.executors.executor import Context, Recipe, guarded

log = logging.getLogger(__name__)

_TOO_LONG = 74  # exit code of the process
_contexts: dict[Recipe, Context] = {}  # of this process


def remote_task(recipe: str, task: str, item: str, seconds: float) -> str:
    """Run a task; Dask's worker calls this.

    A thread cannot be ended from outside. So a task that exceeds its deadline ends the process,
    and the scheduler gives the task to another.

    Args:
        recipe: The fields of a `Recipe`, as JSON.
        task: `module:function`.
        item: As JSON.
        seconds: The deadline.

    Returns:
        The answer of `guarded`, as JSON.
    """
    watch = threading.Timer(seconds, _end, (task, seconds))
    watch.daemon = True
    watch.start()
    try:
        key = Recipe(**json.loads(recipe))
        if key not in _contexts:
            _contexts[key] = Context(key)
        return json.dumps(guarded(_contexts[key], task, json.loads(item)))
    finally:
        watch.cancel()


def _end(task: str, seconds: float) -> None:
    log.error("%s has not ended within %g s: this process ends", task, seconds)
    logging.shutdown()
    os._exit(_TOO_LONG)
