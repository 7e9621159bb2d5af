"""Runs many calls in parallel, and reports the progress of transfers.

The calls are requests to a store, so threads wait for replies most of the time. An error of one
call does not end the others: each outcome is yielded, and its `result()` raises. Called by the
uploader, the registry, and `setup` in a replica's init container.
"""

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

from kfp_tfjob.common.progress import ProgressReport, report

# More workers do not help if the store is near, because a request costs CPU time and all threads
# share one interpreter.
WORKERS = 8
_MOST_WORKERS = 32  # each keeps a connection to the store open
# Per second of latency. A request costs about 0.5 ms of CPU time, so one core stays busy until the
# first reply.
_WORKERS_PER_SECOND = 2000
_TICK = 0.5  # seconds; soon enough for a reply at the flush barrier, which is renewed every second
_LINE = 5.0  # seconds between two lines of progress; a kubelet keeps 10 MB of a log
_REPORT = 0.5  # seconds between two reports for a live line

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


def workers_for(latency: float) -> int:
    """Return the number of parallel transfers for a store that answers after `latency` seconds."""
    return min(_MOST_WORKERS, max(WORKERS, round(latency * _WORKERS_PER_SECOND)))


@dataclass(frozen=True, slots=True)
class CallOutcome(Generic[Result]):
    """The outcome of a call.

    Attributes:
        value: The returned value; None if the call failed.
        error: The exception; None if the call succeeded.
    """

    value: Result | None
    error: BaseException | None = None

    def result(self) -> Result:
        """Return the call's value, or raise its exception."""
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

    A caller stops early by ending `items`, because each worker takes its next item from there.
    Calls in progress are completed. Outcomes are yielded in the order in which the calls end.

    Args:
        call: The function.
        items: Taken in order, by one thread at a time.
        workers: Number of threads.
        tick: Called about twice a second while calls run.

    Yields:
        The item, and the outcome of its call.
    """
    items, taking, stopped = iter(items), Lock(), Event()
    outcomes: SimpleQueue[tuple[Item, CallOutcome[Result]] | None] = SimpleQueue()

    def work() -> None:
        """Call the function for one item after another, until no items are left.

        The worker takes items itself, because handing them out would cost two thread switches each.
        """
        try:
            while not stopped.is_set():
                with taking:
                    item = next(items)
                try:
                    outcome = CallOutcome(call(item))
                except Exception as error:
                    outcome = CallOutcome(None, error)
                outcomes.put((item, outcome))
        except StopIteration:
            return
        finally:
            outcomes.put(None)  # this worker has ended

    with ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work) for _ in range(workers)]
        running, ticked = workers, time.monotonic()
        try:
            while running:
                with suppress(Empty):
                    if finished := outcomes.get(timeout=_TICK):
                        yield finished
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
    """Call a function for every item, and yield the outcomes in the items' order.

    The calls run ahead of the caller in threads. The first batch is one call, and each later batch
    is twice as large, so a caller that stops early has caused few unnecessary calls.

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
        while batch := list(islice(items, ahead)):
            yield from zip(batch, pool.map(outcome, batch), strict=True)
            ahead = min(2 * ahead, 8 * workers)


class TransferProgress:
    """Counts files and bytes, and logs the progress every few seconds.

    Args:
        activity: A verb for the log, for example `sending`.
        files: Number of files.
        size: Their total bytes.
    """

    def __init__(self, activity: str, files: int, size: int) -> None:
        self.files, self.size = 0, 0
        self._activity, self._all_files, self._all_size = activity, files, size
        self._start = self._logged_at = self._reported_at = time.monotonic()

    def add(self, size: int) -> None:
        """Count one file of `size` bytes."""
        self.files += 1
        self.size += size
        if self.files == self._all_files:
            self._report()

    def tick(self) -> None:
        """Log a line if the last one is several seconds old; report the numbers more often."""
        if time.monotonic() - self._reported_at >= _REPORT:
            self._reported_at = time.monotonic()
            self._report()
        if time.monotonic() - self._logged_at >= _LINE:
            self._logged_at = time.monotonic()
            log.info(
                "%s: %d of %d files, %s of %.1f MB, %s",
                self._activity,
                self.files,
                self._all_files,
                self,
                self._all_size / 1e6,
                self._eta(),
            )

    def _report(self) -> None:
        is_complete = self.files == self._all_files or not self._all_size
        share = 1.0 if is_complete else self.size / self._all_size
        detail = f"{self.files} of {self._all_files} files, {self}"
        report(ProgressReport(self._activity, share, detail))

    def _eta(self) -> str:
        if not self.size:
            return "no file completed yet"
        rate = self.size / (time.monotonic() - self._start)
        return f"{(self._all_size - self.size) / rate:.0f} s left"

    def __str__(self) -> str:
        """Return the bytes and the rate, for example `12.0 MB at 80.1 MB/s`."""
        seconds = max(time.monotonic() - self._start, 1e-3)
        return f"{self.size / 1e6:.1f} MB at {self.size / 1e6 / seconds:.1f} MB/s"
