"""Many calls at once, and what they have moved so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TypeVar

# More do not help: a request of boto3 costs CPU, and threads share one interpreter.
WORKERS = 8
_TICK = 0.5  # seconds
_LINE = 5.0  # seconds between two lines of progress

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


def each(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int = WORKERS,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Item, Future[Result]]]:
    """Call a function for every item in threads, and yield each ended call in the caller's thread.

    Items are taken as workers come free, so a caller stops early by ending `items`; what has begun
    is waited for.

    Args:
        call: What to do with an item.
        items: Taken in order.
        workers: Threads.
        tick: Called about twice a second while calls run.

    Yields:
        The item, and the future with its result or error.
    """
    items = iter(items)
    ended: SimpleQueue[tuple[Item, Future[Result]]] = SimpleQueue()
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[Result]] = set()

        def begin(item: Item) -> None:
            future = pool.submit(call, item)
            running.add(future)
            future.add_done_callback(lambda future: ended.put((item, future)))

        ticked = time.monotonic()
        try:
            while True:
                for item in islice(items, workers - len(running)):
                    begin(item)
                if not running:
                    return
                with suppress(Empty):
                    item, future = ended.get(timeout=_TICK)
                    running.discard(future)
                    yield item, future
                if time.monotonic() - ticked >= _TICK:
                    ticked = time.monotonic()
                    tick()
        finally:
            for future in running:
                future.cancel()


class Progress:
    """Counts files and bytes, and says how far things are every few seconds.

    Args:
        what: What happens, for instance `sending`.
        files: How many there are.
        size: Their bytes.
    """

    def __init__(self, what: str, files: int, size: int) -> None:
        self.files, self.size = 0, 0
        self._what, self._all_files, self._all_size = what, files, size
        self._start = self._said = time.monotonic()

    def add(self, size: int) -> None:
        """Count one file of `size` bytes."""
        self.files += 1
        self.size += size

    def tick(self) -> None:
        """Log a line when the last one is some seconds old."""
        if time.monotonic() - self._said >= _LINE:
            self._said = time.monotonic()
            log.info(
                "%s: %d of %d files, %s of %.1f MB, %s",
                self._what,
                self.files,
                self._all_files,
                self,
                self._all_size / 1e6,
                self._eta(),
            )

    def _eta(self) -> str:
        if not self.size:
            return "nothing arrived yet"
        rate = self.size / (time.monotonic() - self._start)
        return f"{(self._all_size - self.size) / rate:.0f} s to go"

    def __str__(self) -> str:
        """Return what moved and how fast, for instance `12.0 MB at 80.1 MB/s`."""
        seconds = max(time.monotonic() - self._start, 1e-3)
        return f"{self.size / 1e6:.1f} MB at {self.size / 1e6 / seconds:.1f} MB/s"
