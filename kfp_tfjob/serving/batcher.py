"""Predicts the rows of several requests in one call of the model, which costs little more than one.

A request waits until enough rows have arrived, or until its time is over. Each request gets the
predictions that it would get alone, up to float32 rounding, because evaluate rejects a model whose
prediction for a row depends on the batch. Called by protocol.py if `--batch-milliseconds` is set.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from .loaded_model import LoadedModel
from .request_columns import Rows

_WaitingRequests = list[tuple[Rows, "asyncio.Future[np.ndarray]"]]


class Batcher:
    """Collects the rows of requests; its methods run in the event loop.

    Args:
        predict: Predicts rows; called in `pool`.
        pool: Threads.
        seconds: The longest time that a request waits for other requests.
        rows: The number of rows at which a batch starts at once.
    """

    def __init__(
        self,
        predict: Callable[[LoadedModel, Rows], np.ndarray],
        pool: Executor,
        seconds: float,
        rows: int,
    ) -> None:
        self._predict, self._pool = predict, pool
        self._seconds, self._rows = seconds, rows
        # A new champion may take over while requests wait for the old one.
        self._waiting: dict[LoadedModel, _WaitingRequests] = defaultdict(list)
        self._timers: dict[LoadedModel, asyncio.TimerHandle] = {}
        self._running: set[asyncio.Task[None]] = set()  # the loop keeps only weak references

    async def predict(self, loaded: LoadedModel, rows: Rows) -> np.ndarray:
        """Return the predictions for one request's rows; the model's errors propagate."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[np.ndarray] = loop.create_future()
        waiting = self._waiting[loaded]
        waiting.append((rows, future))
        if sum(queued_rows.count for queued_rows, _ in waiting) >= self._rows:
            self._start(loaded)
        elif len(waiting) == 1:
            self._timers[loaded] = loop.call_later(self._seconds, self._start, loaded)
        return await future

    def _start(self, loaded: LoadedModel) -> None:
        if timer := self._timers.pop(loaded, None):
            timer.cancel()
        task = asyncio.get_running_loop().create_task(self._run(loaded, self._waiting.pop(loaded)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, loaded: LoadedModel, waiting: _WaitingRequests) -> None:
        loop = asyncio.get_running_loop()
        all_rows = [rows for rows, _ in waiting]
        try:  # covers everything, because a request whose future is never set would wait forever
            batch = Rows(
                sum(rows.count for rows in all_rows),
                {
                    name: np.concatenate([rows.features[name] for rows in all_rows])
                    for name in all_rows[0].features
                },
            )
            values = await loop.run_in_executor(self._pool, self._predict, loaded, batch)
        except Exception as error:
            # One request with an invalid row must not fail the other requests in its batch.
            if len(waiting) > 1:
                await asyncio.gather(*(self._run(loaded, [request]) for request in waiting))
            elif not waiting[0][1].done():
                waiting[0][1].set_exception(error)
            return
        start = 0
        for rows, future in waiting:
            if not future.done():  # cancelled if the client has left
                future.set_result(values[start : start + rows.count])
            start += rows.count
