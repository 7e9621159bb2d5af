"""Shows long work on a terminal: one line per step, which is redrawn in place.

A person who waits wants to know what runs, how far it is and how long it takes, and not a hundred
lines of log. So each step has one line with a bar, the rate and the time left, and the log goes to
a file. A program that reads the output, a CI system's page, and a terminal that cannot move its
cursor need plain lines; `commands/terminal.py` decides which.

The cursor is never hidden, and the terminal's mode never changes. So a terminal stays usable after
SIGKILL, which leaves no time to restore it. Called by local runs, `kfp-tfjob watch`, and the
commands that delete.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kfp_tfjob.common.escaping import line, lines
from kfp_tfjob.common.formatting import minutes
from kfp_tfjob.common.progress import ProgressReport

_PER_SECOND = 4  # times that the lines are redrawn; a person sees no more, over SSH either
_BAR = 16  # columns
_NARROW = 70  # columns of a terminal; with fewer, there is no room for a bar
_STALE = 30.0  # seconds; then the step's newest log line tells more than its last report
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MARKS = {"succeeded": ("✓", "green"), "failed": ("✗", "red")}
_ENDED_MARK = ("-", "yellow")  # of a step that was stopped or skipped


@dataclass
class _Line:
    """A step's line.

    Attributes:
        began: When the step began, by the monotonic clock.
        state: `running`, or how the step ended.
        seconds: How long the step took; None while it runs.
        note: The newest line of its log.
        report: Its newest progress report; None before the first.
        reported_at: When the report arrived.
        start: When the activity's first report arrived, and its share.
    """

    began: float
    state: str = "running"
    seconds: float | None = None
    note: str = ""
    report: ProgressReport | None = None
    reported_at: float = 0.0
    start: tuple[float, float] = (0.0, 0.0)

    def take(self, report: ProgressReport) -> None:
        """Replace the report by a newer one; a complete activity needs no bar any more."""
        now = time.monotonic()
        if report.share >= 1:
            self.report = None
            return
        if not self.report or self.report.activity != report.activity:
            self.start = (now, report.share)
        if report != self.report:
            self.report, self.reported_at = report, now

    @property
    def current(self) -> ProgressReport | None:
        """The report of the activity in progress; None without one."""
        is_stale = time.monotonic() - self.reported_at > _STALE
        return None if is_stale or self.state != "running" else self.report

    @property
    def seconds_left(self) -> float | None:
        """The expected seconds until the activity ends, by its rate so far; None if unknown."""
        report, (start, first) = self.report, self.start
        if not report or report.seconds_left is not None:
            return report.seconds_left if report else None
        rate = (report.share - first) / max(self.reported_at - start, 1e-3)
        return (1 - report.share) / rate if rate > 0 else None


class LiveLines:
    """The live lines of a command's steps; a context manager, which draws them while it is open.

    Args:
        log: The file for the plain log; None if the command prints everything anyway.
        transient: Whether the lines vanish at the end.
    """

    def __init__(self, log: Path | None = None, transient: bool = False) -> None:
        self._lines: dict[str, _Line] = {}
        self._lock = threading.RLock()
        self._log = _open(log) if log else None
        self._console = _Console(highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            refresh_per_second=_PER_SECOND,
            transient=transient,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._table,
        )
        self._redirected: list[logging.StreamHandler[TextIO]] = []

    def begin(self, step: str, seconds: float = 0.0) -> None:
        """Add a step's line, or start it again.

        Args:
            step: The step.
            seconds: How long the step has been running already.
        """
        with self._lock:
            self._lines[step] = _Line(began=time.monotonic() - seconds)

    def end(self, step: str, state: str, seconds: float | None = None) -> None:
        """Mark a step as ended: `succeeded`, `failed`, or any other state."""
        with self._lock:
            if current := self._lines.get(step):
                spent = time.monotonic() - current.began if seconds is None else seconds
                current.state, current.seconds = state, spent

    def note(self, step: str, text: str) -> None:
        """Show the newest line of a step's log, until there is a report of its progress."""
        with self._lock:
            if current := self._lines.get(step):
                current.note = text

    def report(self, step: str, report: ProgressReport) -> None:
        """Show a step's progress."""
        with self._lock:
            if current := self._lines.get(step):
                current.take(report)

    def show(self, text: str) -> None:
        """Print a message that stays, above the live lines, and write it to the log."""
        self.write(text)
        self.above(text)

    def above(self, text: str) -> None:
        """Print a message that stays, above the live lines."""
        if self._live.is_started:
            with suppress(OSError):  # the terminal was closed; the signal about it ends the run
                self._console.print(Text(lines(text)), soft_wrap=True)
        else:
            click.echo(lines(text))

    def write(self, text: str) -> None:
        """Write a line to the log only."""
        if self._log and not self._log.closed:
            with suppress(OSError):  # a full disk must not end what is shown
                self._log.write(f"{lines(text)}\n")

    @property
    def has_log(self) -> bool:
        """Whether the plain lines are written to a file."""
        return self._log is not None

    def log_to(self, command: str, name: str) -> Path | None:
        """Write plain lines to a file of the user's, for a command without a folder of its own.

        Returns:
            The file; None if it cannot be written.
        """
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        path = Path(state, "kfp-tfjob", f"{command}-{name}.log")
        self._log = _open(path)
        return path if self._log else None

    def close(self) -> None:
        """Close the log."""
        if self._log:
            self._log.close()

    def __enter__(self) -> LiveLines:
        """Draw the lines."""
        self._live.start()
        # A handler keeps the stream that it was made with, and would print into the lines.
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                if sys.stderr.isatty():
                    handler.setStream(_Above(self))
                    self._redirected.append(handler)
        return self

    def __exit__(self, *_: object) -> None:
        """Draw the lines for the last time; steps that are still running have been stopped."""
        for handler in self._redirected:
            handler.setStream(sys.stderr)
        self._redirected.clear()
        with self._lock:
            for step, current in self._lines.items():
                if current.state == "running":
                    self.end(step, "stopped")
        with suppress(OSError):
            self._live.stop()

    def _table(self) -> Table:
        is_wide = self._console.width >= _NARROW
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=1)
        table.add_column(no_wrap=True)
        if is_wide:
            table.add_column(width=_BAR)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        with self._lock:
            for step, current in self._lines.items():
                bar = [_bar(current)] if is_wide else []
                seconds = current.seconds
                spent = time.monotonic() - current.began if seconds is None else seconds
                table.add_row(
                    _mark(current), Text(line(step)), *bar, _detail(current), Text(minutes(spent))
                )
        return table


class _Console(Console):
    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is."""
        return False


class _Above:
    """A stream whose lines are printed above the live lines."""

    def __init__(self, live: LiveLines) -> None:
        self._live = live

    def write(self, text: str) -> int:
        """Print text, without the end of its last line."""
        if text.strip("\n"):
            self._live.show(text.removesuffix("\n"))
        return len(text)

    def flush(self) -> None:
        """Return, because nothing is buffered."""


def _mark(current: _Line) -> Text:
    if current.state == "running":
        return Text(_SPINNER[int(time.monotonic() * _PER_SECOND) % len(_SPINNER)], "cyan")
    return Text(*_MARKS.get(current.state, _ENDED_MARK))


def _bar(current: _Line) -> ProgressBar | Text:
    if current.state == "succeeded":
        return ProgressBar(total=1, completed=1, width=_BAR)
    report = current.current
    return ProgressBar(total=1, completed=report.share, width=_BAR) if report else Text("")


def _detail(current: _Line) -> Text:
    """Return the percentage, the time left and the counts; without a report, the newest line."""
    if not (report := current.current):
        return Text(line(current.note))
    left = current.seconds_left
    parts = [f"{report.share:.0%}", f"{minutes(left)} left" if left is not None else ""]
    return Text(line(", ".join([*filter(None, parts), f"{report.activity} {report.detail}"])))


def _open(path: Path) -> TextIO | None:
    """Open a log to append to, with private permissions; None if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        opener = lambda name, flags: os.open(name, flags, 0o600)  # noqa: E731
        return open(path, "a", encoding="utf-8", errors="replace", buffering=1, opener=opener)
    except OSError:
        return None
