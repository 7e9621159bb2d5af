"""Runs tasks in several processes of this machine; this process does its share of them.

A process that is killed costs its tasks: they run again, in new processes. If three are killed
before another task is done, the step fails, because it is probably out of memory.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

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
_MOST_LOST = 3  # times that processes are lost without a task that is done in between

_MOST_SHARED = 4  # processes in a pod without a limit of cores, which shares those of its node
_MEMORY = 400 << 20  # bytes of one process, with what it needs for a moment

log = logging.getLogger(__name__)
_context: Context | None = None  # of a worker process


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
        # A fork of this process could deadlock: its libraries have threads. The server that forks
        # imports the tasks once, for all processes.
        self._start = multiprocessing.get_context("forkserver")
        self._start.set_forkserver_preload(["kfp_tfjob.components.prepare_data.tasks"])
        self._pool: ProcessPoolExecutor | None = None
        self._lost = 0

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
                    except (BrokenProcessPool, EOFError, ConnectionError):
                        waiting.appendleft((number, item))
                        self._again(running, waiting, items)
                if waiting:
                    number, item = waiting.popleft()
                    done[number] = run_task(self.context, task, item)
                # This process has nothing to do but to wait once all tasks have begun.
                wait(running, None if not waiting and following not in done else 0, FIRST_COMPLETED)
                for future in [one for one in running if one.done()]:
                    try:
                        answer = future.result()
                    except BrokenProcessPool:
                        self._again(running, waiting, items)
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
            running = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            for process in running:
                process.join()
            self._pool = None
        self.context.close()

    def _submit(self, task: str, item: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._others,
                self._start,
                _open,
                (self.context.recipe, str(self.context.folder), dict(os.environ)),
            )
        return self._pool.submit(_work, task, item)

    def _again(
        self,
        running: dict[Future[Any], int],
        waiting: deque[tuple[int, Any]],
        items: Sequence[Any],
    ) -> None:
        """Prepare to run the tasks of a lost pool again.

        Raises:
            StepError: Processes are lost again and again.
        """
        numbers = sorted(running.values())
        running.clear()
        waiting.extendleft((number, items[number]) for number in reversed(numbers))
        self._pool = None
        self._lost += 1
        if self._lost >= _MOST_LOST:
            raise StepError(
                Problem(
                    "the processes of prepare_data were killed again and again",
                    expected="memory of about 350 MiB for each process",
                    fix="raise pod.prepare.memory, or lower pod.prepare.cpu, which is the number"
                    " of processes",
                )
            )
        log.warning("a process of prepare_data was killed; its tasks run again")


def count_for(parts: int) -> int:
    """Return how many processes there are cores, memory and work for: 1 or more.

    Args:
        parts: The parts of the source.
    """
    fitting = int(memory_left() // _MEMORY) if memory_left() < math.inf else parts
    return max(1, min(available_cores(shared=_MOST_SHARED), fitting, parts))


def _open(recipe: Recipe, folder: str, environment: dict[str, str]) -> None:
    global _context
    # The server that forks has the environment of the moment of its start, and outlives this pool.
    os.environ.clear()
    os.environ.update(environment)
    _context = Context(recipe, within=folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the step is gone, also after it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _work(task: str, item: Any) -> dict[str, Any]:
    assert _context is not None
    return guarded(_context, task, item)
