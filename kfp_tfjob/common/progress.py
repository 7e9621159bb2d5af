"""Reports the progress of long work as numbers, for a program that shows it on a terminal.

The log gets a line every few seconds, for people to read later. A live line needs numbers and is
redrawn more often, and a program that parsed the log's sentences would break with their wording.
So the local run names a file in the environment, and each of its processes appends its reports to
it, one JSON object per line. Without that variable, as in a pod, a report costs nothing.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "KFP_TFJOB_PROGRESS_FILE"
_LONGEST_MESSAGE = 2000  # characters of a warning; its whole text is in the log


@dataclass(frozen=True)
class ProgressReport:
    """The progress of one activity.

    Attributes:
        activity: A verb, for example `fetching`.
        share: The completed part, from 0 to 1.
        detail: The counts and the rate, for example `1,797 rows, 66,825 rows/s`.
        seconds_left: The expected seconds until the end; None if unknown.
    """

    activity: str
    share: float
    detail: str
    seconds_left: float | None = None


def report(progress: ProgressReport) -> None:
    """Append a report to the file that the environment names, if any; never raises."""
    if os.environ.get(FILE):
        _append(asdict(progress))


class WarningHandler(logging.Handler):
    """Appends a step's warnings to the file of reports.

    A warning stays visible above the live lines, but a line of the log does not tell its level.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record that is a warning; ignore others."""
        if record.levelno >= logging.WARNING:
            _append({"warning": record.getMessage()[:_LONGEST_MESSAGE]})


class ReportReader:
    """Reads the reports that were appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def new(self) -> tuple[ProgressReport | None, list[str]]:
        """Return the newest report, if there is a new one, and all new warnings."""
        newest, warnings = None, []
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                complete, _, _ = file.read().rpartition(b"\n")
        except OSError:  # no process has reported yet
            return None, []
        self._offset += len(complete) + (1 if complete else 0)
        for line in complete.splitlines():
            try:
                event = json.loads(line)
                if "warning" in event:
                    warnings.append(str(event["warning"]))
                    continue
                activity, detail = str(event["activity"]), str(event["detail"])
                share = min(max(float(event["share"]), 0.0), 1.0)
                left = event.get("seconds_left")
                seconds_left = None if left is None else float(left)
            except (ValueError, KeyError, TypeError, AttributeError):  # the disk was full
                continue
            newest = ProgressReport(activity, share, detail, seconds_left)
        return newest, warnings


def _append(event: Mapping[str, Any]) -> None:
    """Append one line with one write, which other processes' writes cannot interrupt."""
    line = (json.dumps(event, ensure_ascii=False) + "\n").encode(errors="replace")
    try:
        descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:  # the run that showed it has ended, or its disk is full
        return
