"""Runs tasks in several processes of this machine; this process does its share of them.

The first processes are forks of this one, which has imported everything that tasks need. Such a
fork is safe only while no other thread may hold a lock, so `spare` makes them before the step
begins. Otherwise, and later, they are forks of a server, which imports for half a second.

A process that is killed costs its tasks: they run again, in new processes. If three are killed
before another task is done, the step fails, because it is probably out of memory.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy  # noqa: F401 - it starts threads
import pyarrow  # noqa: F401 - it starts threads

from kfp_tfjob.components.prepare_data.executors.executor import (
    Context,
    Executor,
    Recipe,
    guarded,
    opened,
    run_task,
)
from kfp_tfjob.storage.errors import Problem, StepError
from kfp_tfjob.storage.store import Store
from kfp_tfjob.supervisor.cores import available_cores
from kfp_tfjob.supervisor.kernel import memory_left

_AHEAD = 2  # tasks of each process: one that runs, and one that waits for it
_MANY = 1 << 20  # parts: the size of the source is not known yet
_ENDING = 10  # seconds for a killed process to end
_MOST_LOST = 3  # times that processes are lost without a task that is done in between

_MOST_SHARED = 4  # processes in a pod without a limit of cores, which shares those of its node
_MEMORY = 400 << 20  # bytes of one process, with what it needs for a moment

_TASKS = Path("/proc/self/task")

log = logging.getLogger(__name__)
_context: Context | None = None  # of a worker process


def _threads() -> set[str]:
    return {path.name for path in _TASKS.iterdir()} if _TASKS.is_dir() else set()


# OpenBLAS and jemalloc start theirs when they are imported, and stop them for each fork.
_OF_LIBRARIES = _threads() if threading.active_count() == 1 else set()


def _may_fork() -> bool:
    """Tell whether this process has no threads that could hold a lock."""
    found = _threads()
    return threading.active_count() == 1 and bool(found) and found <= _OF_LIBRARIES


class Processes(Executor):
    """Runs tasks in this process and in others.

    Args:
        recipe: Where everything is.
        count: The number of processes, with this one.
        store: The store, if it is open already.
    """

    def __init__(self, recipe: Recipe, count: int, store: Store | None = None) -> None:
        self.context = Context(recipe, store)
        self._others = count - 1
        self._pool: ProcessPoolExecutor | None = None
        self._processes: Mapping[int, Any] = {}
        self._lost = 0
        if self._others > 0 and _spare and self._others <= _spare.count:
            self._pool = _spare.take()

    def map(self, task: str, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item."""
        if self._others < 1 or len(items) < 2:
            for item in items:
                yield run_task(self.context, task, item)
            return
        waiting = deque(enumerate(items))
        running: dict[Future[Any], int] = {}
        done: dict[int, Any] = {}
        following = 0
        try:
            while following < len(items):
                while waiting and len(running) < _AHEAD * self._others:
                    number, item = waiting.popleft()
                    try:
                        running[self._submit(task, item)] = number
                    except (BrokenProcessPool, EOFError, OSError) as error:
                        waiting.appendleft((number, item))
                        self._again(running, waiting, items, error)
                if waiting:
                    number, item = waiting.popleft()
                    done[number] = run_task(self.context, task, item)
                # This process has nothing to do but to wait once all tasks have begun.
                wait(running, None if not waiting and following not in done else 0, FIRST_COMPLETED)
                # Results come first: when the pool is lost, they need not be computed again.
                ended = [one for one in running if one.done()]
                for future in sorted(ended, key=lambda one: one.exception() is not None):
                    try:
                        answer = future.result()
                    except BrokenProcessPool as error:
                        self._again(running, waiting, items, error)
                        break
                    done[running.pop(future)] = opened(answer)
                    self._lost = 0
                while following in done:
                    yield done.pop(following)
                    following += 1
        finally:
            for future in running:
                future.cancel()

    def close(self) -> None:
        """End the other processes at once, also in the middle of a task, and remove all folders."""
        if self._pool:
            # Otherwise, this process could not end before them, which may read a large file, and
            # they would write into folders that are removed.
            _end(self._pool)
            self._pool = None
        self.context.close()

    def _submit(self, task: str, item: Any) -> Future[Any]:
        if self._pool is None:
            server = multiprocessing.get_context("forkserver")
            # It imports the tasks once, for all processes.
            server.set_forkserver_preload(["kfp_tfjob.components.prepare_data.tasks"])
            self._pool = ProcessPoolExecutor(self._others, server, _begin, (dict(os.environ),))
        self._processes = self._pool._processes
        return self._pool.submit(_work, self.context.recipe, self._folder, task, item)

    @property
    def _folder(self) -> str:
        return str(self.context.folder)

    def _again(
        self,
        running: dict[Future[Any], int],
        waiting: deque[tuple[int, Any]],
        items: Sequence[Any],
        error: Exception,
    ) -> None:
        """Prepare to run the tasks of a lost pool again.

        Raises:
            StepError: Processes are lost repeatedly.
        """
        numbers = sorted(running.values())
        running.clear()
        waiting.extendleft((number, items[number]) for number in reversed(numbers))
        cause = self._cause(error)
        self._pool, self._processes = None, {}
        self._lost += 1
        if self._lost >= _MOST_LOST:
            raise StepError(cause)
        log.warning("a process of prepare_data was lost (%s); its tasks run again", cause.received)

    def _cause(self, error: Exception) -> Problem:
        """Return why processes were lost: they were killed, or could not start."""
        killed = []
        if isinstance(error, BrokenProcessPool):
            processes = list(self._processes.values())
            for process in processes:
                process.join(_ENDING)
            killed = [-process.exitcode for process in processes if (process.exitcode or 0) < 0]
        if killed:
            # When one is lost, the pool ends the others with SIGTERM.
            number = min(killed, key=lambda number: number == signal.SIGTERM)
            return Problem(
                "the processes of prepare_data were killed repeatedly",
                received=signal.Signals(number).name,
                expected="memory of about 350 MiB for each process",
                fix="raise pod.prepare.memory, or lower pod.prepare.cpu, which is the number"
                " of processes",
            )
        return Problem(
            "the processes of prepare_data cannot start",
            received=f"{type(error).__name__}: {error}",
            expected="processes beside this one",
            fix="see the log before this line for the reason of a process, or set pod.prepare.cpu"
            " to 1 to work in one process",
        )


def count_for(parts: int, cores: int = 0) -> int:
    """Return how many processes there are cores, memory and work for: 1 or more.

    Args:
        parts: The parts of the source.
        cores: What a pod without a limit of cores requests; 0 if it is unknown.
    """
    fitting = int(memory_left() // _MEMORY) if memory_left() < math.inf else parts
    return max(1, min(available_cores(shared=cores or _MOST_SHARED), fitting, parts))


class _Spare:
    """Forks of this process that have nothing to do yet."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = ProcessPoolExecutor(
            count, multiprocessing.get_context("fork"), _begin
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons: has threads
            self._pool.submit(int)  # it forks now

    def take(self) -> ProcessPoolExecutor | None:
        pool, self._pool = self._pool, None
        return pool

    def end(self) -> None:
        if pool := self.take():
            _end(pool)


_spare: _Spare | None = None


@contextmanager
def spare() -> Iterator[None]:
    """Fork the processes for what follows, if that is safe now; end them if it needs none."""
    global _spare
    count = count_for(_MANY) - 1
    if _spare or not count or not _may_fork():
        yield
        return
    with suppress(OSError):  # those of the server will say why
        _spare = _Spare(count)
    try:
        yield
    finally:
        if _spare:
            _spare.end()
        _spare = None


def end_spare() -> None:
    """End the processes of `spare`: the work is done on a Dask cluster, and may take hours."""
    if _spare:
        _spare.end()


def _end(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool."""
    running = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in running:
        process.kill()
    for process in running:
        process.join()


def _begin(environment: dict[str, str] | None = None) -> None:
    """Prepare a process for tasks.

    Args:
        environment: That of the step: the server that forks has the environment of the moment of
            its start, and outlives a pool. None for a fork of the step.
    """
    # A fork has the handlers of the step, which ends its processes itself.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the step is gone, also after it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _work(recipe: Recipe, folder: str, task: str, item: Any) -> dict[str, Any]:
    global _context
    if _context is None:
        _context = Context(recipe, within=folder)
    return guarded(_context, task, item)
