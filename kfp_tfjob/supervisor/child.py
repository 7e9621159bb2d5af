"""Starts and stops a command, and reads its progress from the pipe SUPERVISOR_PIPE.

How to stop a command depends on how far it is: one that waits for its peers cannot handle a signal
yet, and one that trains needs time to save. So it reports its phase. Called by `supervise.py`.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from typing import Mapping, Sequence

from .kernel import child_setup
from .log import log

_LONGEST_LINE = 100  # bytes of a progress line; a longer line is not one


class Child:
    """A running command.

    It reports its progress in lines: `waiting` before it waits for its peers, `started` when it can
    handle a signal, `steps A B` when A steps are done and the steps up to B follow. A command need
    not report anything.

    Args:
        command: The program and its arguments.
        environment: Its environment.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                list(command),
                # All replicas then iterate over a set of strings in the same order, and so build
                # the same model.
                env={"PYTHONHASHSEED": "0", **environment, "SUPERVISOR_PIPE": str(write_end)},
                pass_fds=[write_end],
                preexec_fn=child_setup(),
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._pipe, self._partial_line = read_end, b""
        self.pid = self._process.pid
        self.start_time = time.monotonic()
        self.waiting_since = math.inf
        self.started = False
        self.done = self.tried = 0
        self._sent_signal = 0

    @property
    def waiting(self) -> bool:
        """Whether it waits for its peers."""
        return self.waiting_since < math.inf

    def read_progress(self, seconds: float, wakeup: int) -> None:
        """Read progress lines for at most `seconds`, or until a signal arrives.

        Args:
            seconds: The longest wait.
            wakeup: A descriptor that is readable after a signal; -1 for none.
        """
        descriptors = [descriptor for descriptor in (self._pipe, wakeup) if descriptor >= 0]
        readable = select.select(descriptors, [], [], seconds)[0]
        if wakeup in readable:
            os.read(wakeup, 1 << 16)
        if self._pipe not in readable:
            return
        chunk = os.read(self._pipe, 1 << 16)
        if not chunk:
            os.close(self._pipe)
            self._pipe = -1
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        # A user's own command may write there by mistake, without limit.
        self._partial_line = self._partial_line[-_LONGEST_LINE:]
        for line in lines:
            self._parse_line(line[:_LONGEST_LINE].decode(errors="replace"))

    def _parse_line(self, line: str) -> None:
        """Record the progress in a line; ignore any other line."""
        word, *numbers = line.split()[:3] or [""]
        if word == "waiting":
            self.waiting_since = time.monotonic()
        elif word == "started":
            self.waiting_since, self.started = math.inf, True
            self._sent_signal = 0  # a signal during the start may have been lost
        elif word == "steps" and len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            self.done, self.tried = map(int, numbers)

    def stop(self, number: int) -> None:
        """Send the command a signal, once."""
        if self.waiting:
            # There is nothing to save yet, and TensorFlow ignores other signals while it waits.
            number = signal.SIGKILL
        if number != self._sent_signal:
            self._sent_signal = number
            log(f"sending {signal.Signals(number).name} to the command")
            self.kill(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command and to the processes that it started."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # they have ended
            return

    def clean_up(self) -> None:
        """Clean up after a command that has ended, and kill the processes that it left."""
        self.kill()
        self._process.returncode = 0  # Popen must not ask for its status again
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
