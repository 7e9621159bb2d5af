"""Logs the progress of long work about every five seconds."""

from __future__ import annotations

import logging
import time

_SECONDS = 5.0

log = logging.getLogger(__name__)


class ProgressLog:
    """Counts rows and bytes, and logs the counts.

    Args:
        verb: The first word of each line, for instance `read`.
    """

    def __init__(self, verb: str) -> None:
        self._verb, self._rows, self._bytes = verb, 0, 0
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
        rate = self._bytes / 1e6 / max(self._last - self._start, 1e-3)
        log.info(
            "%s %s rows, %.1f MB, %.1f MB/s", self._verb, f"{self._rows:,}", self._bytes / 1e6, rate
        )
