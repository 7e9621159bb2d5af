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
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.storage.escaping import lines as safe_lines

log = logging.getLogger(__name__)

_TASK = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r" - INFO - Task '[^']+' ")
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


class Relay(threading.Thread):
    """Writes all output of the pipeline to a file, and shows the lines of its steps.

    Importing TensorFlow prints nothing for up to a minute on a small machine. A user who sees
    nothing for several seconds assumes that the run hangs.
    """

    _SILENCE = 4.0  # seconds; after more, a user assumes that the run hangs

    def __init__(
        self, pipeline: subprocess.Popen[str], path: Path, show: Callable[[str], None]
    ) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._path, self._show = pipeline, path, show
        self._step, self._began = "", time.monotonic()
        self._shown = self._began
        self.is_full = False  # whether the disk of the file is full

    def run(self) -> None:
        """Read until the pipeline ends, because a pipe that is not read would block it."""
        lines = self._write_lines()
        try:
            for step, text in readable(lines):
                now = time.monotonic()
                if step != self._step:
                    self._step, self._began, self._shown = step, now, now
                if text:
                    self._say(text)
        except Exception as error:  # for example, nothing reads standard output any more
            log.warning("the steps' lines are not shown any more: %s", error)
            for _ in chain(lines, self._pipeline.stdout or ()):
                continue

    def sign_of_life(self) -> None:
        """Show that the step is still running, if it has printed nothing for a while."""
        if self._step and time.monotonic() - self._shown >= self._SILENCE:
            self._say(f"... working for {time.monotonic() - self._began:.0f} s")

    def _say(self, text: str) -> None:
        self._shown = time.monotonic()
        self._show(f"{self._step:<13} {text}")

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
