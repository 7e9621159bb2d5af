"""Runs tasks in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kfp_tfjob.components.prepare_data.executors.executor import (
    Context,
    Executor,
    Recipe,
    run_task,
)
from kfp_tfjob.storage.store import Store


class Inline(Executor):
    """Runs tasks in this process.

    Args:
        recipe: Where everything is.
        store: The store, if it is open already.
    """

    def __init__(self, recipe: Recipe, store: Store | None = None) -> None:
        self.context = Context(recipe, store)

    def map(self, task: str, items: Sequence[Any]) -> Iterator[Any]:
        """Run a task for each item."""
        for item in items:
            yield run_task(self.context, task, item)

    def close(self) -> None:
        """Remove the local folder."""
        self.context.close()
