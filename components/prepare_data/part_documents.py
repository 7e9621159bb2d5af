"""Reads the parts of a source, and yields what each part has, in order.

A part whose document is there from an earlier try is not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kfp_tfjob.components.prepare_data.executors.executor import Executor, ProgressLog
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.components.prepare_data.source.readers.registry import Part
from kfp_tfjob.components.prepare_data.tasks import PartDone, document

_TASK = "kfp_tfjob.components.prepare_data.tasks:rows"

log = logging.getLogger(__name__)


def read(executor: Executor, job: Job, parts: Sequence[Part]) -> Iterator[tuple[PartDone, int]]:
    """Read all parts.

    Args:
        executor: Runs the task.
        job: The source.
        parts: Its parts.

    Yields:
        What each part has, and the lines of its file before it.
    """
    exchange = executor.context.exchange
    exchange.write_plain(f"{job.name}/job", job)
    known = set(exchange.names(job.name))
    missing = [part for part in parts if document(job.name, part.number) not in known]
    progress = ProgressLog("read", job.source.size)
    if done := len(parts) - len(missing):
        log.info("%s of %s parts are there from an earlier try", done, len(parts))
    finished = _map(executor, job, missing)
    waiting = {part.number for part in missing}
    ended = lines = 0
    for part in parts:
        name = document(job.name, part.number)
        while part.number in waiting:
            found_part, rows = next(finished)
            waiting.discard(found_part.number)
            progress.add(rows, found_part.size)
        found = exchange.read_plain(name, PartDone)
        if part.follows and found.reached and found.reached[0] != ended:
            # A quoted value crosses the boundary, so the first record was guessed wrong.
            assert part.span
            again = replace(part, span=Span(ended, part.span.end, exact=True))
            for _ in _map(executor, job, [again]):
                pass
            found = exchange.read_plain(name, PartDone)
        lines = lines if part.follows else 0
        yield found, lines
        if found.reached:
            ended = found.reached[1]
            lines += found.reached[2]
    progress.log()


def _map(executor: Executor, job: Job, parts: Sequence[Part]) -> Iterator[tuple[Part, int]]:
    """Run the task over parts; yield each of them and its rows."""
    items = [(job.name, part) for part in parts]
    yield from zip(parts, executor.map(_TASK, items), strict=True)
