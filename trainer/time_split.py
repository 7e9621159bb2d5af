"""Splits the time of a training by activity."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeSplit:
    """The time of this process, split by activity.

    Attributes:
        seconds: Seconds by activity: `start` until the first step is done, waiting for `data`, for
            a `checkpoint`, for `callbacks`.
    """

    def __init__(self) -> None:
        names = ("start", "data", "checkpoint", "callbacks")
        self.seconds: dict[str, float] = dict.fromkeys(names, 0.0)

    @contextmanager
    def spent_on(self, name: str) -> Iterator[None]:
        """Count the time that passes in the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - start

    def all(self, train: float, **others: float) -> dict[str, float]:
        """Return the whole split, rounded.

        Args:
            train: Seconds of the training, including those counted here; the rest is `compute`.
            **others: Seconds outside the training; those of `start` are added to the count.
        """
        compute = max(train - sum(self.seconds.values()), 0.0)
        split = self.seconds | {"compute": compute} | others
        split["start"] = self.seconds["start"] + others.get("start", 0.0)
        return {name: round(seconds, 3) for name, seconds in split.items()}
