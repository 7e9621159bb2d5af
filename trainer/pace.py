"""Measures the speed of the replicas and their waiting times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class TimeSplit:
    """The time of this process, split by activity.

    Attributes:
        seconds: Seconds by activity: `start` until the first step is done, waiting for `data`,
            for the gradients of others (`communication`), for a `checkpoint`, for `callbacks`.
    """

    def __init__(self) -> None:
        names = ("start", "data", "communication", "checkpoint", "callbacks")
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


@dataclass(frozen=True)
class StepTimes:
    """The times of some steps in one process.

    Attributes:
        seconds: Seconds from start to end, nearly equal in all processes.
        data: The part of them spent waiting for batches.
        communication: The part of them spent waiting for the gradients of others.
    """

    seconds: float = 0.0
    data: float = 0.0
    communication: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        """Return the sum of both."""
        return StepTimes(
            self.seconds + other.seconds,
            self.data + other.data,
            self.communication + other.communication,
        )

    def to_words(self) -> np.ndarray:
        """Return (3,) int32 microseconds, enough for half an hour."""
        found = np.array([self.seconds, self.data, self.communication]) * 1e6
        return np.minimum(found, np.iinfo(np.int32).max).astype(np.int32)

    @classmethod
    def from_words(cls, words: np.ndarray) -> StepTimes:
        """Return the times that `to_words` packed."""
        return cls(*(words / 1e6).tolist())


@dataclass
class Pace:
    """The times of all processes since the last progress line, on the chief.

    Args:
        processes: Number of processes of the job.
    """

    processes: int
    _runs: list[StepTimes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with no steps."""
        self.clear()

    def clear(self) -> None:
        """Start again from zero."""
        self._runs = [StepTimes()] * self.processes

    def add(self, runs: Sequence[StepTimes]) -> None:
        """Count some more steps, one `StepTimes` for each process."""
        self._runs = [mine + new for mine, new in zip(self._runs, runs, strict=True)]

    @property
    def seconds(self) -> float:
        """Seconds of all steps since the last line, as measured on the chief."""
        return self._runs[0].seconds

    def figures(self) -> dict[str, Any]:
        """Return `data_share` and `slowest`.

        `data_share` is the share of step time that all processes waited for data. `slowest` is
        {"replica": name, "slower": extra time}. The extra time is a fraction of the median time of
        the others, without communication. `slowest` is None for a single process.
        """
        seconds = sum(run.seconds for run in self._runs)
        share = sum(run.data for run in self._runs) / seconds if seconds else 0.0
        return {"data_share": round(share, 3), "slowest": self._slowest()}

    def _slowest(self) -> dict[str, Any] | None:
        busy = [run.seconds - run.communication for run in self._runs]
        if self.processes == 1 or min(busy) <= 0:
            return None
        at = int(np.argmax(busy))
        others = statistics.median(busy[:at] + busy[at + 1 :])
        name = f"worker {at - 1}" if at else "chief"
        return {"replica": name, "slower": round(busy[at] / others - 1, 3)}
