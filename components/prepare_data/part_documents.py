"""Runs a task over the parts of sources, and yields what each part has, in order.

A part whose document is there from an earlier try is not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.parts import Part
from kfp_tfjob.components.prepare_data.progress import ProgressLog
from kfp_tfjob.components.prepare_data.readers.reach import Span
from kfp_tfjob.components.prepare_data.tasks import LOOK, ROWS, document

_TASKS = "kfp_tfjob.components.prepare_data.tasks"
_VERBS = {LOOK: "looked at", ROWS: "read"}

log = logging.getLogger(__name__)


def read(
    executor: Executor, task: str, work: Sequence[tuple[Job, Sequence[Part]]]
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Run a task over all parts.

    Args:
        executor: Runs the task.
        task: LOOK or ROWS.
        work: Each source as a job, with its parts.

    Yields:
        For each part the place of its job in `work`, what it has, and the lines of its file before
        it.
    """
    exchange = executor.context.exchange
    known: set[str] = set()
    for job, _ in work:
        exchange.write_plain(f"{job.name}/job", job.to_plain())
        known.update(exchange.names(job.name))
    everything = [(job, part) for job, parts in work for part in parts]
    missing = [
        (job, part)
        for job, part in everything
        if document(job.name, task, part.number) not in known
    ]
    progress = ProgressLog(_VERBS[task], sum(job.source.size for job, _ in work))
    if done := len(everything) - len(missing):
        log.info("%s of %s parts are there from an earlier try", done, len(everything))
    finished = _map(executor, task, missing)
    waiting = {(job.name, part.number) for job, part in missing}
    for place, (job, parts) in enumerate(work):
        ended = lines = 0
        for part in parts:
            name = document(job.name, task, part.number)
            while (job.name, part.number) in waiting:
                of, found_part, rows = next(finished)
                waiting.discard((of.name, found_part.number))
                progress.add(rows, found_part.size)
            found = exchange.read_plain(name)
            if part.follows and found.get("reached") and found["reached"][0] != ended:
                # A quoted value crosses the boundary, so the first record was guessed wrong.
                again = replace(part, span=Span(ended, part.span.end, exact=True))
                for _ in _map(executor, task, [(job, again)]):
                    pass
                found = exchange.read_plain(name)
            lines = lines if part.follows else 0
            yield place, found, lines
            if found.get("reached"):
                ended = found["reached"][1]
                lines += found["reached"][2]
    progress.log()


def _map(
    executor: Executor, task: str, work: Sequence[tuple[Job, Part]]
) -> Iterator[tuple[Job, Part, int]]:
    """Run a task over parts; yield each of them and its rows."""
    items = [[job.name, part.to_plain()] for job, part in work]
    results = executor.map(f"{_TASKS}:{task}", items)
    for (job, part), result in zip(work, results, strict=True):
        yield job, part, sum(result)
