"""Runs many calls in parallel, and reports the progress of transfers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Generic, TypeVar

# More do not help if the store is near: a request costs CPU, and threads share one interpreter.
WORKERS = 8
_MOST_WORKERS = 32
_WORKERS_PER_SECOND = 2000  # of latency: this many requests keep one core busy until the reply
_TICK = 0.5  # seconds
_LINE = 5.0  # seconds between two lines of progress

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


def workers_for(latency: float) -> int:
    """Return how many files to send at once to a store that answers after `latency` seconds."""
    return min(_MOST_WORKERS, max(WORKERS, round(latency * _WORKERS_PER_SECOND)))


@dataclass(frozen=True, slots=True)
class CallOutcome(Generic[Result]):
    """The outcome of a call.

    Attributes:
        value: What it returned; None if it failed.
        error: What it raised; None if it succeeded.
    """

    value: Result | None
    error: BaseException | None = None

    def result(self) -> Result:
        """Return what the call returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def each(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int = WORKERS,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Item, CallOutcome[Result]]]:
    """Call a function for every item in threads, and yield the outcomes in the caller's thread.

    Free workers take the next item, so a caller stops early by ending `items`; calls in progress
    are completed.

    Args:
        call: The function.
        items: Taken in order, by one thread at a time.
        workers: Number of threads.
        tick: Called about twice a second while calls run.

    Yields:
        The item, and the outcome of its call.
    """
    items, taking, stopped = iter(items), Lock(), Event()
    ended: SimpleQueue[tuple[Item, CallOutcome[Result]] | None] = SimpleQueue()

    def work() -> None:
        """Take items until none are left: handing them out would cost two thread switches each."""
        try:
            while not stopped.is_set():
                with taking:
                    item = next(items)
                try:
                    outcome = CallOutcome(call(item))
                except Exception as error:
                    outcome = CallOutcome(None, error)
                ended.put((item, outcome))
        except StopIteration:
            return
        finally:
            ended.put(None)

    with ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work) for _ in range(workers)]
        running, ticked = workers, time.monotonic()
        try:
            while running:
                with suppress(Empty):
                    if one := ended.get(timeout=_TICK):
                        yield one
                    else:
                        running -= 1
                if time.monotonic() - ticked >= _TICK:
                    ticked = time.monotonic()
                    tick()
        finally:
            stopped.set()
        for worker in working:
            worker.result()  # raises an error of `items`


def in_order(
    call: Callable[[Item], Result], items: Iterable[Item], workers: int = WORKERS
) -> Iterator[tuple[Item, CallOutcome[Result]]]:
    """Call a function for every item, and yield the outcomes in the order of the items.

    The calls run ahead of the caller in threads, first one, then twice as many each time: so a
    caller that stops early has paid for few calls that it did not need.

    Args:
        call: The function.
        items: The items.
        workers: Number of threads.

    Yields:
        The item, and the outcome of its call.
    """
    items, ahead = iter(items), 1

    def outcome(item: Item) -> CallOutcome[Result]:
        try:
            return CallOutcome(call(item))
        except Exception as error:
            return CallOutcome(None, error)

    with ThreadPoolExecutor(workers) as pool:
        while some := list(islice(items, ahead)):
            yield from zip(some, pool.map(outcome, some), strict=True)
            ahead = min(2 * ahead, 8 * workers)


class TransferProgress:
    """Counts files and bytes, and logs the progress every few seconds.

    Args:
        what: The activity, for example `sending`.
        files: Number of files.
        size: Their total bytes.
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
        """Log a line if the last one is several seconds old."""
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
            return "no file completed yet"
        rate = self.size / (time.monotonic() - self._start)
        return f"{(self._all_size - self.size) / rate:.0f} s left"

    def __str__(self) -> str:
        """Return the bytes and the rate, for example `12.0 MB at 80.1 MB/s`."""
        seconds = max(time.monotonic() - self._start, 1e-3)
        return f"{self.size / 1e6:.1f} MB at {self.size / 1e6 / seconds:.1f} MB/s"
