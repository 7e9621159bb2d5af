"""When a checkpoint is due: after `checkpoint_seconds`, and at the end of an epoch.

An epoch's end is the best position, because nothing has to be repeated. But saving blocks training
for a moment, so an end soon after a checkpoint is skipped. Called by `loop.py`, which also saves at
the end of training and before a stop.
"""

from __future__ import annotations

import time

_SOON = 5.0  # seconds after a checkpoint; the end of an epoch is not worth another one


class CheckpointSchedule:
    """The schedule of one training, by the clock of this process.

    Args:
        interval: The seconds between two checkpoints, `train_options.checkpoint_seconds`.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._saved = time.monotonic()

    def saved(self) -> None:
        """Begin the next interval, because saving a checkpoint has just begun."""
        self._saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint within an epoch."""
        return time.monotonic() - self._saved >= self._interval

    @property
    def is_due_after_epoch(self) -> bool:
        """Whether it is time for a checkpoint at the end of an epoch."""
        return time.monotonic() - self._saved >= min(_SOON, self._interval)
