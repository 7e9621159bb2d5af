"""Runs tasks in several processes of this machine.

The first processes are forks of this one, which has imported everything that tasks need. Such a
fork is safe only while no other thread may hold a lock, so `spare` makes them before the step
begins. Otherwise, and later, they are forks of a server, which imports for half a second.

A process that is killed costs the tasks that were running: they run again, in new processes. If
three are killed before another task is done, the step fails, because it is probably out of memory.
"""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 - it starts threads
import pyarrow  # noqa: F401 - it starts threads

from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.supervisor.cores import available_cores
from kfp_tfjob.supervisor.kernel import memory_left

from .executor import Context, Executor, answer, result_of

_MANY = 1 << 20  # parts: the source's size is not known yet
_MOST_LOST = 3  # times that processes are lost without a task that is done in between

_MOST_SHARED = 4  # processes in a pod without a CPU limit, which shares its node's cores
_MEMORY = 400 << 20  # bytes of one process, with what it needs for a moment

_TASKS = Path("/proc/self/task")

log = logging.getLogger(__name__)
_spare: ProcessPoolExecutor | None = None
_context: Context | None = None  # of a worker process


def _threads() -> set[str]:
    return {path.name for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()


# OpenBLAS and jemalloc start theirs when they are imported, and stop them for each fork.
_OF_LIBRARIES = _threads() if threading.active_count() == 1 else set()


class Processes(Executor):
    """Runs tasks in other processes, so many at a time."""

    def __init__(self, context: Context, count: int) -> None:
        global _spare
        super().__init__(context)
        self._count = count
        self._pool, _spare = _spare, None

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
                        for i in range(number, len(items)):
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
        return self._started().submit(_work, context, task, common, item)

    def close(self) -> None:
        """End the other processes at once, also in the middle of a task, and remove all folders."""
        if self._pool:
            # Otherwise, this process could not end before them, which may read a large file, and
            # they would write into folders that are removed.
            _end(self._pool)
            self._pool = None
        super().close()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            server = multiprocessing.get_context("forkserver")
            # It imports the tasks once, for all processes.
            server.set_forkserver_preload(["kfp_tfjob.components.prepare_data.tasks"])
            self._pool = ProcessPoolExecutor(self._count, server, _begin, (dict(os.environ),))
        return self._pool


def _is_done(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _lost(error: Exception) -> Problem:
    return Problem(
        "prepare_data's processes were killed repeatedly, or cannot start",
        received=f"{type(error).__name__}: {error}",
        expected="about 350 MiB of memory per process",
        fix="raise pod.prepare.memory, or lower pod.prepare.cpu, which is the number of processes:"
        " with 1, the step itself does the work",
    )


def _processes(pool: ProcessPoolExecutor | None) -> list[Any]:
    return list((pool._processes or {}).values()) if pool else []


def count_for(parts: int, cores: int = 0) -> int:
    """Return how many processes there are cores, memory and parts of the source for: 1 or more.

    Args:
        parts: The parts of the source.
        cores: How many the pod requests; 0 if that is unknown. It may have a higher limit, and a
            local run has the cores of its machine.
    """
    fitting = int(memory_left() // _MEMORY) if memory_left() < math.inf else parts
    available = available_cores(shared=cores or _MOST_SHARED)
    return max(1, min(available, cores or available, fitting, parts))


@contextmanager
def spare(count: int = 0, cores: int = 0) -> Iterator[None]:
    """Fork the processes that `Processes` will use within this context, if that is safe now.

    If it is not safe, `Processes` starts a fork server when it needs processes. Processes that it
    has not taken by the end are killed.

    Args:
        count: The number of processes; 0 to choose it by the cores and the memory.
        cores: The cores that the pod requests, as in `count_for`.
    """
    global _spare
    count, threads = count or count_for(_MANY, cores), _threads()
    # Another thread could hold a lock, which would never be released in the fork.
    is_safe = threading.active_count() == 1 and bool(threads) and threads <= _OF_LIBRARIES
    if count > 1 and is_safe and _spare is None:
        # A garbage collection in a fork would write to all objects, so their pages would be copied.
        gc.freeze()
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin)
        # If this fails, `Processes` starts the fork server, which reports why.
        with suppress(OSError), warnings.catch_warnings():
            # Newer Pythons warn about a fork with threads; it was checked above.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(int)  # the pool forks all its processes at the first task
            _spare = pool
    try:
        yield
    finally:
        if _spare:  # no `Processes` took them
            _end(_spare)
        _spare = None


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool."""
    running = _processes(pool)
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        process.kill()
    for process in running:
        process.join()


def _begin(environment: dict[str, str] | None = None) -> None:
    """Prepare a process for tasks; a fork of the step has its environment already."""
    # A fork has the handlers of the step, which ends its processes itself.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if environment is not None:  # the server keeps its first environment, and outlives a pool
        os.environ.clear()
        os.environ.update(environment)
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
