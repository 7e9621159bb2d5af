"""Starts and stops a command, and reads its progress from the pipe SUPERVISOR_PIPE."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from typing import Mapping, Sequence

from kfp_tfjob.supervisor.kernel import child_setup
from kfp_tfjob.supervisor.log import log

_LONGEST_LINE = 100  # bytes of a progress line


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
        ear, mouth = os.pipe()
        try:
            self._process = subprocess.Popen(
                list(command),
                # All replicas build the same model, even from the order of a set of strings.
                env={"PYTHONHASHSEED": "0", **environment, "SUPERVISOR_PIPE": str(mouth)},
                pass_fds=[mouth],
                preexec_fn=child_setup(),
            )
        except OSError:
            os.close(ear)
            raise
        finally:
            os.close(mouth)
        self._ear, self._heard = ear, b""
        self.pid = self._process.pid
        self.born = time.monotonic()
        self.waiting_since = math.inf
        self.started = False
        self.done = self.tried = 0
        self._told = 0

    @property
    def waiting(self) -> bool:
        """Whether it waits for its peers."""
        return self.waiting_since < math.inf

    def hear(self, seconds: float, bell: int) -> None:
        """Read progress lines for at most `seconds`, or until a signal arrives.

        Args:
            seconds: The longest wait.
            bell: A descriptor that is readable after a signal; -1 for none.
        """
        heard = select.select([it for it in (self._ear, bell) if it >= 0], [], [], seconds)[0]
        if bell in heard:
            os.read(bell, 1 << 16)
        if self._ear not in heard:
            return
        data = os.read(self._ear, 1 << 16)
        if not data:
            os.close(self._ear)
            self._ear = -1
        *lines, self._heard = (self._heard + data).split(b"\n")
        # A user's own command may write there by mistake, without limit.
        self._heard = self._heard[-_LONGEST_LINE:]
        for line in lines:
            self._take(line[:_LONGEST_LINE].decode(errors="replace"))

    def _take(self, line: str) -> None:
        word, *numbers = line.split()[:3] or [""]
        if word == "waiting":
            self.waiting_since = time.monotonic()
        elif word == "started":
            self.waiting_since, self.started = math.inf, True
            self._told = 0  # a signal during the start may have been lost
        elif word == "steps" and len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            self.done, self.tried = map(int, numbers)

    def stop(self, number: int) -> None:
        """Send the command a signal, once."""
        if self.waiting:
            # There is nothing to save yet, and TensorFlow ignores other signals while it waits.
            number = signal.SIGKILL
        if number != self._told:
            self._told = number
            log(f"sending {signal.Signals(number).name} to the command")
            self.kill(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command and to the processes that it started."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def bury(self) -> None:
        """Clean up after a command that has ended, and kill the processes that it left."""
        self.kill()
        self._process.returncode = 0  # Popen must not ask for its status again
        if self._ear >= 0:
            os.close(self._ear)
            self._ear = -1
