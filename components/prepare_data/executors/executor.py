"""Runs tasks in this process; other executors run them elsewhere.

A task is a function that is named by `module:function`. It takes a context, a value that all tasks
of a call have in common, and an item of its own; these and its result can be pickled. Rows stay out
of that: they are in bucket files. So the same task runs in this process, in another process, or on
a Dask worker. Created by prepare_data's engine; called by the scan and wherever shards are written.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import minutes
from kfp_tfjob.common.progress import ProgressReport, report
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

from ..bucket_folder import BucketFolder, BucketPrefix

log = logging.getLogger(__name__)


@dataclass
class Context:
    """The store and folders for tasks; another process opens a copy with its own credentials.

    Attributes:
        place: A local folder or an address in S3, for the bucket files.
        endpoint: Of the store; empty, like the region, for the setting of each process.
        within: Where the context's folder is; None for the usual location.
        opened: The store, if this process has opened it already.
    """

    place: str
    endpoint: str = ""
    region: str = ""
    within: str | None = None
    opened: Store | None = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Omit from a copy what only this process can use."""
        return Context, (self.place, self.endpoint, self.region, self.within)

    @cached_property
    def store(self) -> Store:
        """The store, with this process's own connections."""
        return self.opened or Store(self.endpoint, self.region)

    @cached_property
    def buckets(self) -> BucketFolder:
        """Where the bucket files are."""
        if self.place.startswith("s3://"):
            return BucketPrefix(self.store, S3Address.parse(self.place))
        return BucketFolder(Path(self.place))

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

    def map(self, task: str, common: Any, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item.

        A task may run more than once, and its result may not depend on where or how often.

        Args:
            task: `module:function`; it is called with a `Context`, the common value and an item.
            common: What all tasks get; another process loads it once.
            items: Small values that can be pickled.

        Yields:
            The results, in the order of the items. Closing the iterator drops what has not begun.

        Raises:
            StepError: What a task has raised, or that its worker was lost too often.
        """
        for item in items:
            yield run_task(self.context, task, common, item)

    def close(self) -> None:
        """End what the executor has started, and remove its folders."""
        self.context.close()


@lru_cache(maxsize=1)  # so the code of an own reader, which is a part of it, is loaded once
def unpickled(common: bytes) -> Any:
    """Return the argument that all tasks of a call share."""
    return pickle.loads(common)


def answer(context: Context, task: str, common: bytes, item: Any) -> Any:
    """Run a task for another process; return its result or its error, for `result_of`."""
    return answered(lambda: run_task(context, task, unpickled(common), item))


def answered(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error, for `result_of`.

    So an exception that reaches the other side comes from what carries the answers.
    """
    try:
        return call()
    except (StepError, OSError, MemoryError) as error:
        return error
    except Exception:  # not every one can be sent to another process
        return RuntimeError(f"a task failed\n{traceback.format_exc()}")


def result_of(answer: Any) -> Any:
    """Return the result in an answer.

    Raises:
        StepError, OSError, MemoryError: The error of the task.
        RuntimeError: The task has a bug; it has the traceback.
    """
    if isinstance(answer, Exception):
        raise answer
    return answer


def run_task(context: Context, task: str, common: Any, item: Any) -> Any:
    """Run a task, named by `module:function`, in this process."""
    module, _, name = task.partition(":")
    return getattr(importlib.import_module(module), name)(context, common, item)


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
        seconds_left = seconds * (1 - share) / max(share, 1e-3)
        rows, rate = f"{self._rows:,} rows", f"{self._rows / seconds:,.0f} rows/s"
        log.info(
            "%s %s, %.1f MB (%.0f%%), %s%s",
            self._verb,
            rows,
            self._bytes / 1e6,
            100 * share,
            rate,
            f", about {minutes(seconds_left)} left" if seconds_left >= 1 else "",
        )
        report(ProgressReport(self._verb, share, f"{rows}, {rate}", seconds_left))
