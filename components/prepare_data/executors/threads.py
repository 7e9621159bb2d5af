"""Runs tasks in several threads of this process.

pyarrow and numpy release the GIL, so tasks that work on whole columns compute at the same time.
Threads start at once, and share the imported modules, the common value and Arrow's pool of memory.
A reader that works row by row in Python would make them wait for each other, so its tasks run in
processes.

A thread cannot be killed. So a task looks between two chunks whether it is to stop
(`Context.raise_if_stopped`), and threads are daemons: one that waits for the store does not keep
the process alive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from .executor import Context, Executor, run_task

_STOP_SECONDS = 10.0  # in which threads end; a chunk takes less than one


class Threads(Executor):
    """Runs tasks in threads, so many at a time."""

    def __init__(self, context: Context, count: int) -> None:
        super().__init__(context)
        self._count = count
        self._threads: list[threading.Thread] = []
        # From Python 3.12 on, two threads could create each of these.
        _ = context.folder, context.store, context.buckets

    def map(self, task: str, common: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item, as in `Executor.map`; an error of a task is raised as it is."""
        futures = deque(Future[Any]() for _ in items)
        waiting = deque(zip(futures, items, strict=True))

        def work() -> None:
            while True:
                try:
                    future, item = waiting.popleft()
                except IndexError:
                    return
                try:
                    future.set_result(run_task(self.context, task, common, item))
                except BaseException as error:
                    future.set_exception(error)
                del future, item  # they may be large, and the next task is long

        running = [thread for thread in self._threads if thread.is_alive()]
        added = [
            threading.Thread(target=work, name="prepare_data", daemon=True)
            for _ in range(min(self._count, len(items)))
        ]
        self._threads = [*running, *added]
        for thread in added:
            thread.start()
        try:
            while futures:
                yield futures.popleft().result()
        finally:
            waiting.clear()

    def close(self) -> None:
        """Let the tasks end at their next chunk, wait for this, and remove the folder."""
        self.context.stop()
        end = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        super().close()
