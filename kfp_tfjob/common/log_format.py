"""The format of the log lines of all processes: the time, then a message that cannot add lines.

A message may hold text from outside, such as a column's name or a store's reply, which could
otherwise begin a false line or color the terminal. Called by the command line, the steps, the
uploader and the trainer when they start.
"""

from __future__ import annotations

import logging
from typing import TextIO

from .escaping import lines


def log_to(stream: TextIO, style: str = "%(asctime)s %(message)s") -> logging.Handler:
    """Return a handler that writes log lines to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(style, "%H:%M:%S"))
    return handler


class LogFormatter(logging.Formatter):
    """Formats log records so that their content cannot add or color lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record; all lines after the first are indented."""
        return lines(super().format(record), indent="  ")
