"""Shows the output of a local run: only the steps' own lines, by step, and a sign of life.

kfp.local mixes the steps' lines with its own and with JSON of whole inputs, so a user cannot find
them. Everything is also written to a file, which `why` reads. Called by `run.py` and
`pipeline_log.py`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from kfp_tfjob.common.escaping import lines as safe_lines
from kfp_tfjob.jobs.log_masking import Mask

log = logging.getLogger(__name__)

_TASK = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r" - INFO - Task '[^']+' ")
_FINISHED = re.compile(r"[\d:.]+ - \w+ - Task '([^']+)' finished with status (\w+)")
_INDENT = "    "


def readable(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (step, line) for every line that a step printed, and (step, "") when a step begins.

    kfp.local indents the lines of the steps and adds messages of its executor. After one of these
    messages it prints the whole input of the step as JSON.
    """
    step, in_input = "", False
    for line in lines:
        line = safe_lines(line.rstrip("\n"))
        if task := _TASK.search(line):
            step = task.group(1).replace("-", "_")
            yield step, ""
            continue
        if _ENDED.search(line):
            step = ""  # its outputs follow, printed by kfp.local
        if not line.startswith(_INDENT) or not line.strip():
            continue
        text = line.removeprefix(_INDENT)
        if in_input:
            in_input = text != "}"
        elif text.startswith("[KFP Executor"):
            in_input = "Got executor_input" in text
        elif step:
            yield step, text


def step_line(step: str, text: str) -> str:
    """Return a line of a step after the step's name."""
    return f"{step:<13} {text}"


class Steps(ABC):
    """Shows the steps of a run; a context manager for the time in which the pipeline runs."""

    @abstractmethod
    def begin(self, step: str) -> None:
        """Begin a step, which the next lines belong to."""

    @abstractmethod
    def line(self, text: str) -> None:
        """Take a line that the current step printed."""

    @abstractmethod
    def end(self, step: str, succeeded: bool) -> None:
        """End a step."""

    @abstractmethod
    def refresh(self) -> None:
        """Show that the run continues; it is called several times per second."""

    @abstractmethod
    def __enter__(self) -> Steps: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


class PlainSteps(Steps):
    """Prints the steps' lines, and a sign of life if there are none.

    Importing TensorFlow prints nothing for up to a minute on a small machine. A user who sees
    nothing for several seconds assumes that the run hangs.
    """

    _SILENCE = 4.0  # seconds; after more, a user assumes that the run hangs

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._step, self._began = "", time.monotonic()
        self._shown = self._began

    def begin(self, step: str) -> None:
        """Print the next lines after the name of this step."""
        if step != self._step:  # a retry goes on
            self._step, self._began = step, time.monotonic()
            self._shown = self._began

    def line(self, text: str) -> None:
        """Print a line."""
        self._shown = time.monotonic()
        self._show(step_line(self._step, text))

    def end(self, step: str, succeeded: bool) -> None:
        """Print nothing, because the step has printed its result."""

    def refresh(self) -> None:
        """Show that the step is still running, if it has printed nothing for a while."""
        if self._step and time.monotonic() - self._shown >= self._SILENCE:
            self.line(f"... working for {time.monotonic() - self._began:.0f} s")

    def __enter__(self) -> PlainSteps:
        """Return the steps."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because every line is printed at once."""


class Relay(threading.Thread):
    """Writes all output of the pipeline to a file, and shows its steps."""

    def __init__(self, pipeline: subprocess.Popen[str], path: Path, steps: Steps) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._path, self._steps = pipeline, path, steps
        self.is_full = False  # whether the disk of the file is full

    def run(self) -> None:
        """Read until the pipeline ends, because a pipe that is not read would block it."""
        lines, current = self._write_lines(), ""
        try:
            for step, text in readable(self._show_ends(lines)):
                if step != current or not text:
                    current = step
                    self._steps.begin(step)
                if text:
                    self._steps.line(text)
        except Exception as error:  # for example, nothing reads standard output any more
            log.warning("the steps' progress is no longer shown: %s", error)
            for _ in chain(lines, self._pipeline.stdout or ()):
                continue

    def _show_ends(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield every line, and end a step at kfp.local's line about it.

        The lines of steps are indented, so no program can imitate that line.
        """
        for line in lines:
            if line[:1].isdigit() and (end := _FINISHED.match(safe_lines(line))):
                self._steps.end(end[1].replace("-", "_"), end[2] == "SUCCESS")
            yield line

    def _write_lines(self) -> Iterator[str]:
        """Write every line to the file and yield it, even if the file cannot be written."""
        try:
            file = open(self._path, "wb", buffering=0)
        except OSError:
            file = open(os.devnull, "wb", buffering=0)  # the lines are still shown
        mask = Mask()  # kfp.local prints the whole input of every step
        assert self._pipeline.stdout
        with file:
            for line in map(mask, self._pipeline.stdout):
                try:
                    file.write(line.encode(errors="replace"))
                except OSError as error:
                    # The pipe must be read in any case. The caller stops the run on a full disk.
                    self.is_full = self.is_full or error.errno in (errno.ENOSPC, errno.EDQUOT)
                yield line
