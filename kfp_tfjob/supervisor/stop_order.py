"""Holds the order to stop, from a signal or from the pod's annotations."""

from __future__ import annotations

import os
import signal
from typing import Sequence

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether this replica has to stop, and how.

    Args:
        early: Signals that arrived before this object was made.

    Attributes:
        signal: The number of the signal that asked for it; 0 to continue.
        by_force: Whether there is no time left to save.
        orphaned: Whether the reason is that no launcher waits for this job.
        bell: A descriptor that is readable after a signal or the end of a child; -1 for none.
    """

    def __init__(self, early: Sequence[int] = ()) -> None:
        self.signal = early[-1] if early else 0
        self.by_force = self.orphaned = False
        self.bell = -1

    def __bool__(self) -> bool:
        return bool(self.signal)

    def listen(self) -> None:
        """Start to handle signals, and wake up when a child ends."""
        self.bell, clapper = os.pipe()
        os.set_blocking(clapper, False)
        signal.set_wakeup_fd(clapper, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _SIGNALS:
            signal.signal(number, self._take)

    def ask(self) -> None:
        """Stop as if SIGTERM had arrived, unless a signal has already arrived."""
        self.signal = self.signal or signal.SIGTERM

    def _take(self, number: int, _frame: object) -> None:
        self.signal = number
