"""Runs tasks in this process; other executors run them elsewhere.

A task is a function that is named by `module:function` and takes a context and a small value that
can be pickled; so can its result. Rows, and what many tasks need, go through the exchange. So the
same task runs in this process, in another process, or on a Dask worker.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from kfp_tfjob.storage import files
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.formatting import minutes
from kfp_tfjob.storage.store import Store

Value = TypeVar("Value")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value in the exchange: its name, and the SHA-256 of its bytes.

    It travels with a task, so write access to the exchange alone does not let anyone replace the
    value.
    """

    name: str
    digest: str


class Exchange:
    """Where tasks leave data for each other: objects as files of a folder, which must exist.

    An object appears whole or not at all. Tasks that run twice write the same bytes twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, or replace it."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object from `start` up to `end`.

        Raises:
            ObjectNotFoundError: There is no such object.
        """
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                file.seek(start)
                return file.read() if end is None else file.read(end - start)
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{self._folder / name} does not exist") from None

    def clear(self) -> None:
        """Delete what tasks have left; a local folder goes with the step."""

    def share(self, name: str, value: Value) -> Shared[Value]:
        """Write a value that can be pickled."""
        body = pickle.dumps(value)
        self.write(name, body)
        return Shared(name, sha256(body).hexdigest())

    def load(self, shared: Shared[Value]) -> Value:
        """Return a value that `share` has written.

        Raises:
            ObjectNotFoundError: There is no such object.
            DataError: The object is damaged.
        """
        body = self.read(shared.name)
        if sha256(body).hexdigest() != shared.digest:
            raise damaged(shared.name)
        return pickle.loads(body)

    @staticmethod
    def at(place: str, store: Callable[[], Store]) -> Exchange:
        """Return the exchange in a local folder or at an address in S3."""
        if place.startswith("s3://"):
            return StoreExchange(store(), S3Address.parse(place))
        return Exchange(Path(place))


def damaged(name: str) -> DataError:
    """Return the error for an object whose bytes are not those that were written."""
    return DataError(
        Problem(
            f"{name}, which an earlier task of this step wrote, is damaged",
            expected="the bytes that were written",
            fix="start the run again; if it happens again, find out what else writes to datasets/",
        )
    )


class StoreExchange(Exchange):
    """Objects below a prefix in S3."""

    def __init__(self, store: Store, prefix: S3Address) -> None:
        self._store, self._prefix = store, prefix

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, or replace it."""
        self._store.write(self._prefix / name, bytes(data))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object."""
        return self._store.read_range(self._prefix / name, start, end)

    def clear(self) -> None:
        """Delete what tasks have left; a store that rejects hides no other fault, fails no run."""
        try:
            for item in self._store.list(self._prefix):
                self._store.delete(item.address)
        except StepError as error:
            log.warning("the intermediate files of prepare_data were not deleted: %s", error)


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
        """Omit from a copy what only this process can use."""
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
            yield run_task(self.context, task, item)

    def close(self) -> None:
        """End what the executor has started, and remove its folders."""
        self.context.close()


def answer(context: Context, task: str, item: Any) -> Any:
    """Run a task for another process; return its result or its error, for `result_of`."""
    return answered(lambda: run_task(context, task, item))


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


def run_task(context: Context, task: str, item: Any) -> Any:
    """Run a task, named by `module:function`, in this process."""
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
