"""When the chief saves a checkpoint: after `checkpoint_seconds`, and at the end of an epoch.

An epoch's end is the best position, because nothing has to be repeated. But saving blocks training
for a moment, so the ends of very short epochs are skipped. Called by `loop.py`.
"""

from __future__ import annotations

import time

_SHORTEST_EPOCH = 5.0  # seconds; the end of a shorter epoch is not worth a checkpoint


class CheckpointSchedule:
    """The schedule of one training, by the clock of this process.

    Args:
        interval: The seconds between two checkpoints, `train_options.checkpoint_seconds`.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._saved = time.monotonic()

    def saved(self) -> None:
        """Begin the next interval, because a checkpoint has just been saved."""
        self._saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint within an epoch."""
        return time.monotonic() - self._saved >= self._interval

    @property
    def is_due_after_epoch(self) -> bool:
        """Whether it is time for a checkpoint at the end of an epoch."""
        return time.monotonic() - self._saved >= min(_SHORTEST_EPOCH, self._interval)
