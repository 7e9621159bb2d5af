"""Processes of the test cluster: started with a mark in their environment, ended by process id.

The id is in a file, so that every process of a test session can stop and start a server. The mark
finds every process again, also those of a cluster whose test session was killed: the servers, and
containerd's shims, which inherit it; what runs in containers descends from the shims.
"""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from kfp_tfjob.common.errors import Problem, StepError

MARK = "KFP_TFJOB_TEST_CLUSTER"
_LAST_WORDS = 2000  # characters
_END_SECONDS = 20
_started: dict[int, subprocess.Popen[bytes]] = {}  # by this process of the session


class Process:
    """A server of the cluster.

    Args:
        mark: The folder it belongs to; `end_marked` with this folder, or one above, ends it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        logs: Path,
        mark: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self._command = [str(part) for part in command]
        self._environment = os.environ | dict(environment or {}) | {MARK: str(mark)}
        self._id = mark / f"{name}.pid"

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        return int(self._id.read_text())

    @property
    def running(self) -> bool:
        return self._process() is not None

    def start(self) -> None:
        """Start it, unless it is running; the log continues where it ended."""
        if self.running:
            return
        with open(self.log, "ab") as output:
            started = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the tests, which stop the cluster last
            )
        _started[started.pid] = started
        self._id.write_text(str(started.pid))

    def stop(self, grace: float = 5) -> None:
        """End it with SIGTERM, and with SIGKILL after `grace` seconds."""
        self.signal(signal.SIGTERM)
        if not wait_until(lambda: not self.running, grace):
            self.signal(signal.SIGKILL)
            wait_until(lambda: not self.running, _END_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if process := self._process():
                process.send_signal(number)

    def _process(self) -> psutil.Process | None:
        """Return the process, whichever process of the session has started it."""
        try:
            process = psutil.Process(self.pid)
            if child := _started.get(process.pid):
                if child.poll() is None:  # its environment may not be there yet
                    return process
                _started.pop(process.pid, None)
            ours = process.environ().get(MARK) == self._environment[MARK]
            return process if ours and _alive(process) else None
        except (psutil.Error, OSError, ValueError):
            return None

    def wait_until(self, ready: Callable[[], bool], seconds: float = 240) -> None:
        """Wait until `ready()`; an OSError of it counts as no.

        Raises:
            StepError: The process ended, or the time is over; with the end of its log.
        """

        def ready_or_ended() -> bool:
            return not self.running or ready()

        if wait_until(ready_or_ended, seconds) and self.running:
            return
        raise StepError(
            Problem(
                f"{self.name} of the test cluster "
                + (f"is not ready after {seconds:.0f} s" if self.running else "has ended"),
                received=self.log.read_text(errors="replace")[-_LAST_WORDS:].strip(),
                fix=f"look at {self.log}",
            )
        )


def wait_until(true: Callable[[], object], seconds: float) -> bool:
    """Poll until `true()`, and return whether it was in time; an OSError counts as no."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if true():
                return True
        except OSError:
            pass  # not there yet
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


class Server(Protocol):
    """A server with whatever it needs to be of use."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


S = TypeVar("S", bound=Server)


@contextlib.contextmanager
def running(server: S) -> Iterator[S]:
    """Start a server, and stop it at the end, even if it only half started."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


def answers(url: str, authority: Path | None = None) -> bool:
    """Tell whether a server says that it is healthy; an OSError until it listens."""
    trust = ssl.create_default_context(cafile=str(authority)) if authority else None
    with urllib.request.urlopen(url, timeout=2, context=trust) as answer:
        return answer.status == 200


def run_pytest(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", *arguments]
    process = subprocess.Popen(command, env=os.environ | environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)  # Ctrl-C is for pytest too, which sums up
        raise
    finally:
        process.kill()  # its workers end with it; everything else is the caller's to end


def end_marked(folder: Path) -> None:
    """Kill every process marked with `folder` or one below, and all that descend from it."""
    if not wait_until(lambda: not _kill_all(folder), _END_SECONDS):
        left = [f"{p.pid} {p.name()}" for p in _marked(folder)]
        raise StepError(Problem("processes of the test cluster cannot be ended", received=left))


def kill(pids: Sequence[int]) -> None:
    """Kill processes by id; those that have ended are no error."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _kill_all(folder: Path) -> int:
    """Kill all, and return how many were found."""
    found = {p for root in _marked(folder) for p in (root, *_descendants(root))}
    kill([process.pid for process in found])
    return len(found)


def _marked(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK)
            if mark and Path(mark).is_relative_to(folder) and _alive(process):
                found.append(process)
        except psutil.Error:
            continue  # it ended
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _alive(process: psutil.Process) -> bool:
    # A zombie that is our child is reaped by asking for it; others are init's.
    return process.status() != psutil.STATUS_ZOMBIE
