"""Runs tasks in several processes of this machine.

They get paths and small plans, never rows. Threads would wait for each other while values become
objects of Python: with two workers, they take 1.1 to 1.3 times as long, and more of them gain less.
They are spawned and not forked, because this process has threads, which could hold a lock at that
moment; so each imports for about half a second.

A process that is killed costs the tasks that were running: they run again, in new processes. If
three are killed before another task is done, the step fails, because it is probably out of memory.
Called by prepare_data's engine if several tasks run at a time.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from kfp_tfjob.common.errors import Problem, StepError

from .executor import Context, Executor, answer, result_of

_AHEAD = 3  # tasks for each process that are running, waiting or done
_MOST_LOST = 3  # times that processes are lost without a task that is done in between

log = logging.getLogger(__name__)
_context: Context | None = None  # of a worker process


class Processes(Executor):
    """Runs tasks in other processes, so many at a time."""

    def __init__(self, context: Context, count: int) -> None:
        super().__init__(context)
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, task: str, common: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item, as in `Executor.map`."""
        pickled = pickle.dumps(common)
        context = replace(self.context, within=str(self.context.folder))
        futures: dict[int, Future[Any]] = {}
        lost = 0
        try:
            for number in range(len(items)):
                while True:
                    try:
                        # Not all at once: results that wait for an earlier one take memory.
                        for i in range(number, min(number + _AHEAD * self._count, len(items))):
                            if i not in futures:
                                futures[i] = self._submit(context, task, pickled, items[i])
                        result = futures[number].result()
                        break
                    except (BrokenProcessPool, EOFError, OSError) as error:
                        # Results of other tasks do not have to be computed again.
                        futures = {i: future for i, future in futures.items() if _is_done(future)}
                        self._pool, lost = None, lost + 1
                        if lost == _MOST_LOST:
                            raise StepError(_lost(error)) from error
                        log.warning("a prepare_data process died (%s); its tasks run again", error)
                del futures[number]
                lost = 0
                yield result_of(result)
        finally:
            for future in futures.values():
                future.cancel()

    def _submit(self, context: Context, task: str, common: bytes, item: Any) -> Future[Any]:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, spawn, _begin)
        return self._pool.submit(_work, context, task, common, item)

    def close(self) -> None:
        """End the other processes at once, also in the middle of a task, and remove all folders."""
        if self._pool:
            # Otherwise, this process could not end before them, which may read a large file, and
            # they would write into folders that are removed.
            _end(self._pool)
            self._pool = None
        super().close()


def _is_done(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _lost(error: Exception) -> Problem:
    return Problem(
        "prepare_data's processes were killed repeatedly, or cannot start",
        received=f"{type(error).__name__}: {error}",
        expected="about 350 MiB of memory per process",
        fix="raise pod.prepare.memory, or lower pod.prepare.cpu, which is the number of workers:"
        " with 1, the step itself does the work",
    )


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool."""
    running = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        process.kill()
    for process in running:
        process.join()


def _begin() -> None:
    """Prepare a process for tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the step ends its processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the step is gone, also after it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _work(context: Context, task: str, common: bytes, item: Any) -> Any:
    global _context
    if _context is None:
        _context = context
    return answer(_context, task, common, item)
