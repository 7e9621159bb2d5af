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
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Iterable, Iterator, Mapping, Sequence

from .files import read_text
from .kernel import child_setup, children
from .log import log

# These end at a signal without passing it on to the program that they run.
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
# These copy another program's output and end with it. If they ended first, that program could not
# log any more while it saves, and would end with a broken pipe.
_FILTERS = ("tee", "cat", "grep", "sed", "awk", "ts")
_LONGEST_LINE = 100  # bytes of a progress line; a longer line is not one


class Child:
    """A running command.

    It reports its progress in lines: `waiting` before it waits for its peers, `started` when it can
    handle a signal, `steps A B` when A steps are done and the steps up to B follow. A command need
    not report anything.

    Args:
        command: The program and its arguments.
        environment: Its environment.

    Attributes:
        ended: Whether the command itself has ended; processes that it started may still run.

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
        self.started = self.ended = False
        self.done = self.tried = 0
        self._sent_signal = 0
        self._receivers: set[int] = set()

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
        """Send a signal, once: to the command or, once it has ended, to the programs that it left.

        A program decides itself when its worker processes end, because it may need them to save;
        the kubelet, too, signals only the first process. A shell does not pass the signal on, so
        the programs that it runs get it as well.
        """
        if self.waiting:
            # There is nothing to save yet, and TensorFlow ignores other signals while it waits.
            number = signal.SIGKILL
        if number != self._sent_signal:
            self._sent_signal, self._receivers = number, set()
            log(f"sending {signal.Signals(number).name} to the command")
        elif not self.ended:
            return
        if number == signal.SIGKILL:
            return self.kill()
        # All are listed first, because a shell that has ended lists no children.
        receivers = {*_receivers(self.remaining() if self.ended else [self.pid])}
        if not self.ended:
            receivers.add(self.pid)
        for pid in receivers - self._receivers:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        self._receivers |= receivers

    def remaining(self) -> list[int]:
        """Return the processes of the command's group whose parent has ended."""
        return [pid for pid in children() if pid != self.pid and os.getpgid(pid) == self.pid]

    def kill(self) -> None:
        """Kill the command and the processes that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # they have ended
            return

    def clean_up(self) -> None:
        """Clean up after a command that has ended, and kill the processes that it left."""
        self.kill()
        self._process.returncode = 0  # Popen must not ask for its status again
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _receivers(processes: Iterable[int]) -> Iterator[int]:
    """Yield processes and, after a shell, the programs that it runs; filters are left out."""
    for pid in processes:
        program = _program_of(pid)
        if program not in _FILTERS:
            yield pid
        if program in _SHELLS:
            yield from _receivers(children(pid))


def _program_of(pid: int) -> str:
    """Return the name under which a process was started; for a script, its interpreter's."""
    program = read_text(Path(f"/proc/{pid}/cmdline")).partition("\0")[0]
    return PurePath(program).name.lstrip("-")
