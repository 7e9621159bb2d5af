"""Logs the progress of long work about every five seconds.

    read 1,250,000 rows, 340.0 MB (25%), 410,000 rows/s, 111.5 MB/s, about 9 s left

The line is the same on every executor: the collector of the results counts them.
"""

from __future__ import annotations

import logging
import time

from kfp_tfjob.storage.formatting import minutes

_SECONDS = 5.0

log = logging.getLogger(__name__)


class ProgressLog:
    """Counts rows and bytes, and logs the counts.

    Args:
        verb: The first word of each line, for instance `read`.
        total_bytes: The size of all the work; 0 if it is not known. Then no line has the share that
            is done and the time that is left.
    """

    def __init__(self, verb: str, total_bytes: int = 0) -> None:
        self._verb, self._total = verb, total_bytes
        self._rows = self._bytes = 0
        self._said = (0, 0)
        self._start = self._last = time.monotonic()

    def add(self, rows: int, size: int) -> None:
        """Add to the counts; write a line if the last one is five seconds old."""
        self._rows += rows
        self._bytes += size
        if time.monotonic() - self._last >= _SECONDS:
            self.log()

    def log(self) -> None:
        """Write a line now, unless there is nothing new to say."""
        counts = (self._rows, self._bytes)
        if counts == self._said:
            return
        self._said = counts
        self._last = time.monotonic()
        log.info("%s", self._line(max(self._last - self._start, 1e-3)))

    def _line(self, seconds: float) -> str:
        """Return the line after these seconds."""
        size = f"{self._bytes / 1e6:.1f} MB"
        left = 0.0
        if self._total and self._bytes:
            share = min(self._bytes / self._total, 1.0)
            size += f" ({share:.0%})"
            left = seconds * (1 - share) / share
        speed = f"{self._rows / seconds:,.0f} rows/s, {self._bytes / 1e6 / seconds:.1f} MB/s"
        parts = [f"{self._verb} {self._rows:,} rows", size, speed]
        if left >= 1:
            parts.append(f"about {minutes(left)} left")
        return ", ".join(parts)
