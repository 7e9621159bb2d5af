"""Runs tasks in this process; other executors run them elsewhere.

A task is a function that is named by `module:function` and takes a context and a small value that
can be pickled; so can its result. Rows, and what many tasks need, go through the exchange. So the
same task runs in this process, in a process of its own, or on a worker of Dask.
"""

from __future__ import annotations

import importlib
import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp_tfjob.components.prepare_data.executors.exchange import Exchange, Shared, Value
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.formatting import minutes
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


@dataclass
class Context:
    """What a task gets besides its item; another process opens a copy with its own credentials.

    Attributes:
        place: A local folder or an address in S3, for what tasks leave for others.
        endpoint: Of the store; empty, like the region, for the setting of each process.
        within: Where the context's folder is; None for the usual location.
        opened: The store, if this process has opened it already.
        cache: The values that `load` has returned.
    """

    place: str
    endpoint: str = ""
    region: str = ""
    within: str | None = None
    opened: Store | None = field(default=None, compare=False)
    cache: dict[Shared[Any], Any] = field(default_factory=dict, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out of a copy what only this process can use."""
        return Context, (self.place, self.endpoint, self.region, self.within)

    @cached_property
    def store(self) -> Store:
        """The store, with this process's own connections."""
        return self.opened or Store(self.endpoint, self.region)

    @cached_property
    def exchange(self) -> Exchange:
        """Where tasks leave data for others."""
        return Exchange.at(self.place, lambda: self.store)

    def load(self, shared: Shared[Value]) -> Value:
        """Return a value of the exchange, which this process reads once."""
        if shared not in self.cache:
            self.cache[shared] = self.exchange.load(shared)
        return self.cache[shared]

    @cached_property
    def _scratch(self) -> TemporaryDirectory[str]:
        return TemporaryDirectory(
            prefix="prepare-data-", dir=self.within, ignore_cleanup_errors=True
        )

    @property
    def folder(self) -> Path:
        """A folder on local disk for this process alone."""
        return Path(self._scratch.name)

    def close(self) -> None:
        """Remove the folder."""
        if scratch := self.__dict__.pop("_scratch", None):
            scratch.cleanup()


class Executor:
    """Runs tasks in this process, one after the other.

    Args:
        context: What tasks get in this process.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def map(self, task: str, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item.

        A task may run more than once, and its result may not depend on where or how often.

        Args:
            task: `module:function`; it is called with a `Context` and an item.
            items: Small values that can be pickled.

        Yields:
            The results, in the order of the items. Closing the iterator drops what has not begun.

        Raises:
            StepError: What a task has raised, or that its worker was lost too often.
        """
        for item in items:
            yield _run(self.context, task, item)

    def close(self) -> None:
        """End what the executor has started, and remove its folders."""
        self.context.close()


def answer(context: Context, task: str, item: Any) -> Any:
    """Run a task for another process; return its result or its error, for `result_of`."""
    try:
        return _run(context, task, item)
    except (StepError, OSError) as error:
        return error
    except Exception:  # not every one can be sent to another process
        return RuntimeError(f"a task failed\n{traceback.format_exc()}")


def result_of(answer: Any) -> Any:
    """Return the result in an answer.

    Raises:
        StepError, OSError: The error of the task.
        RuntimeError: The task has a bug; it has the traceback.
    """
    if isinstance(answer, Exception):
        raise answer
    return answer


def _run(context: Context, task: str, item: Any) -> Any:
    module, _, name = task.partition(":")
    return getattr(importlib.import_module(module), name)(context, item)


_SECONDS = 5.0


class ProgressLog:
    """Counts rows and bytes, and logs the counts about every five seconds, on every executor alike.

    read 1,250,000 rows, 340.0 MB (25%), 410,000 rows/s, about 9 s left
    """

    def __init__(self, verb: str, total_bytes: int) -> None:
        self._verb, self._total = verb, max(total_bytes, 1)
        self._rows = self._bytes = 0
        self._start = self._last = time.monotonic()

    def add(self, rows: int, size: int) -> None:
        """Add to the counts; write a line if the last one is five seconds old."""
        self._rows += rows
        self._bytes += size
        if time.monotonic() - self._last >= _SECONDS:
            self.log()

    def log(self) -> None:
        """Write a line now."""
        self._last = time.monotonic()
        seconds = max(self._last - self._start, 1e-3)
        share = min(self._bytes / self._total, 1.0)
        left = seconds * (1 - share) / max(share, 1e-3)
        log.info(
            "%s %s rows, %.1f MB (%.0f%%), %s rows/s%s",
            self._verb,
            f"{self._rows:,}",
            self._bytes / 1e6,
            100 * share,
            f"{self._rows / seconds:,.0f}",
            f", about {minutes(left)} left" if left >= 1 else "",
        )
