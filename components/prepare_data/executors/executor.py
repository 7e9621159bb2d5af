"""The interface of an executor, and what a task gets.

A task is a function that is named by `module:function` and takes a context and plain values, as
JSON has them; its result is plain too. Large data goes through the exchange. So the same task runs
in this process, in a process of its own, or on a worker of Dask.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.storage import errors
from kfp_tfjob.storage.errors import Example, Problem, StepError
from kfp_tfjob.storage.store import Store


class Executor(Protocol):
    """Runs tasks.

    Attributes:
        context: What tasks get in this process.
    """

    context: Context

    def map(self, task: str, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item.

        A task may run more than once, and its result may not depend on where or how often.

        Args:
            task: `module:function`; it is called with a `Context` and an item.
            items: Plain values.

        Yields:
            The results, in the order of the items. Closing the iterator drops what has not begun.

        Raises:
            StepError: What a task has raised, or that its worker was lost too often.
        """
        ...

    def close(self) -> None:
        """End what the executor has started."""


@dataclass(frozen=True)
class Recipe:
    """What a worker needs to open its context; credentials are those of its own environment.

    Attributes:
        exchange: A local folder or an address in S3, for what tasks leave for others.
        endpoint: Of the store; empty for the worker's own setting.
        region: Of the store; empty for the worker's own setting.
    """

    exchange: str
    endpoint: str = ""
    region: str = ""

    def to_plain(self) -> dict[str, str]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass
class Context:
    """What a task gets besides its item.

    Attributes:
        recipe: Where everything is.
        own: The store, if this process has opened it already.
        cache: What tasks of this worker keep for the next one, by a key of their own.
        within: Where its folder is; None for the usual place.
    """

    recipe: Recipe
    own: Store | None = None
    cache: dict[Any, Any] = field(default_factory=dict)
    within: str | None = None
    _scratch: TemporaryDirectory | None = None

    @cached_property
    def store(self) -> Store:
        """The store, with this worker's own connections."""
        return self.own or Store(self.recipe.endpoint, self.recipe.region)

    @cached_property
    def exchange(self) -> Exchange:
        """Where tasks leave data for others."""
        return Exchange.at(self.recipe.exchange, lambda: self.store)

    @property
    def folder(self) -> Path:
        """A folder on local disk for this worker alone."""
        if self._scratch is None:
            self._scratch = TemporaryDirectory(
                prefix="prepare-data-", dir=self.within, ignore_cleanup_errors=True
            )
        return Path(self._scratch.name)

    def close(self) -> None:
        """Remove the folder."""
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def run_task(context: Context, task: str, item: Any) -> Any:
    """Run a task in this process and return its result."""
    return _function(task)(context, item)


def guarded(context: Context, task: str, item: Any) -> dict[str, Any]:
    """Run a task for a step in another process; its result or its error becomes a plain value."""
    try:
        return {"result": run_task(context, task, item)}
    except StepError as error:
        return {"error": _to_plain(error)}
    except OSError as error:
        return {"os": [error.errno, str(error)]}
    except Exception:
        return {"bug": traceback.format_exc()}


def opened(answer: dict[str, Any]) -> Any:
    """Return the result of `guarded`, or raise its error.

    Raises:
        StepError: The error of the task.
        OSError: The error of the task.
        RuntimeError: The task has a bug; it has the traceback.
    """
    if "error" in answer:
        raise _from_plain(answer["error"])
    if "os" in answer:
        number, text = answer["os"]
        raise OSError(number, f"{os.strerror(number) if number else ''} ({text})")
    if "bug" in answer:
        raise RuntimeError(f"a task failed\n{answer['bug']}")
    return answer["result"]


def _function(task: str) -> Callable[[Context, Any], Any]:
    module, _, name = task.partition(":")
    return getattr(importlib.import_module(module), name)


def _to_plain(error: StepError) -> dict[str, Any]:
    return {
        "class": type(error).__name__,
        "notes": list(error.notes),
        "problems": [
            problem
            if isinstance(problem, str)
            else {
                **{
                    name: value if value is None or isinstance(value, str) else str(value)
                    for name, value in vars(problem).items()
                },
                "is_example": isinstance(problem, Example),
            }
            for problem in error.problems
        ],
    }


def _from_plain(plain: dict[str, Any]) -> StepError:
    kind = getattr(errors, plain["class"], StepError)
    problems = []
    for item in plain["problems"]:
        if not isinstance(item, str):
            item = dict(item)
            item = (Example if item.pop("is_example") else Problem)(**item)
        problems.append(item)
    return kind(*problems, notes=plain["notes"])
