"""Runs one container of a pod as a process, with its environment, output and state.

The container's state has the form of Kubernetes, so the launcher reads it like a cluster's. Called
by `pod.py`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kfp_tfjob.common import progress
from kfp_tfjob.jobs.log_masking import hide
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import RESERVED
from kfp_tfjob.supervisor.kernel import children

from ..log_lines import last_state

log = logging.getLogger(__name__)

# Variables that a pod gets only from its manifest. For example, DATA_DIR in the user's shell may
# name the user's own files. PYTHONSAFEPATH is set for the steps.
_NOT_INHERITED = RESERVED - {"HOME", "TMPDIR"} | {"PYTHONSAFEPATH", progress.FILE}
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
# A process that left the group may keep the pipe open, so its lines are not waited for any longer.
_LAST_LINES_SECONDS = 2.0
_LONGEST_MESSAGE = 4096  # characters; a cluster allows as many bytes
_LONGEST_PAUSE = 10.0  # seconds between two starts of a sidecar
_CHUNK = 1 << 16  # bytes of one read: the size of a pipe's buffer on Linux
_LONGEST_LINE = 1 << 20  # bytes; a longer line is split, so a program cannot fill the memory
_BAR_SECONDS = 5.0  # between two lines from a progress bar, which only returns to its line's start


class MissingObjectError(LookupError):
    """The pod needs a Secret, a Secret's key or a ConfigMap that does not exist."""


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as Kubernetes does: unknown names stay, and `$$` becomes a dollar sign."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else values.get(match[1], match[0])

    return _REFERENCE.sub(replace, text)


def to_host_path(text: str, mounts: Mapping[str, Path]) -> str:
    """Translate a path below a mountPath to its folder on this machine; other strings stay."""
    for mount in sorted(mounts, key=len, reverse=True):
        if text == mount or text.startswith(mount + "/"):
            return str(mounts[mount]) + text[len(mount) :]
    return text


@dataclass(frozen=True)
class PodInfo:
    """The values that a container's manifest may refer to.

    Attributes:
        metadata: Its pod's metadata.
        secrets: A folder with a folder per Secret and a file per key.
    """

    metadata: Object
    secrets: Path

    def field(self, path: str) -> str:
        """Return the value of a fieldRef, for example `metadata.labels['x']`."""
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
            return str(self.metadata.get(match[1], {}).get(match[2], ""))
        return str(self.metadata.get(path.removeprefix("metadata."), ""))

    def secret(self, name: str, key: str) -> str | None:
        """Return the value of a Secret's key; None if it does not exist."""
        try:
            return (self.secrets / name / key).read_text().strip()
        except OSError:
            return None


def environment(
    container: Object, pod: PodInfo, mounts: Mapping[str, Path], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a container's process.

    It contains this program's environment without a replica's variables, and the manifest's
    variables. PATH contains the virtual environment.

    Args:
        container: The container's spec.
        pod: The pod's metadata and Secrets.
        mounts: The folder on this machine for each mountPath.
        extra: Further variables, which replace others.

    Raises:
        MissingObjectError: A Secret's key does not exist.
    """
    declared: dict[str, str] = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if reference := source.get("secretKeyRef"):
            value = pod.secret(reference["name"], reference["key"])
            if value is None and reference.get("optional"):
                continue
            if value is None:
                raise MissingObjectError(
                    f"Secret {reference['name']} has no key {reference['key']}"
                )
            # The optional keys are the store's, and include its region, which is no secret.
            if not reference.get("optional"):
                hide([value])
        elif field := source.get("fieldRef"):
            value = pod.field(field["fieldPath"])
        else:
            value = expand(variable.get("value", ""), declared)
        declared[variable["name"]] = to_host_path(value, mounts)
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    programs = [str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]
    inherited |= {"PATH": os.pathsep.join(programs)}
    return inherited | declared | dict(extra)


class LocalContainer:
    """A container as a process in its own group, whose output is read line by line.

    Args:
        name: The container's name.
        command: The program and its arguments.
        environment: All variables.
        folder: The working folder.
        restarts: Whether the process is started again when it ends, as a native sidecar is.
        line: Called with each line.
        changed: Called after each change of the state.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        folder: Path,
        restarts: bool,
        line: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.ended = threading.Event()
        # This file's content becomes the state's message, as on a cluster.
        self._termination_message = folder / f".{name}.termination-log"
        self._command, self._folder = command, folder
        self._environment = dict(environment) | {"TERMINATION_LOG": str(self._termination_message)}
        self._restarts, self._line, self._changed = restarts, line, changed
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._signal: signal.Signals | None = None
        self._lock = threading.Lock()
        self._restart_count = 0
        self._drops_lines = False  # whether a line could not be passed on
        self._state: Object = {"waiting": {"reason": "PodInitializing"}}
        threading.Thread(target=self._run, name=f"container {name}", daemon=True).start()

    @property
    def exit_code(self) -> int:
        """The exit code of a container that has ended."""
        return int(self._state["terminated"]["exitCode"])

    @property
    def status(self) -> Object:
        """The entry of status.containerStatuses."""
        running = "running" in self._state
        return {
            "name": self.name,
            "ready": running,
            "restartCount": self._restart_count,
            "state": self._state,
        }

    def stop(self) -> None:
        """Send SIGTERM, as the kubelet does, only to the process that acts as PID 1."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process; `_run_once` then ends its whole group."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._lock:
            self._stopping.set()
            self._signal = number
            if self._process and self._process.returncode is None:
                # A supervisor's command has a group of its own, and may leave programs that save.
                # In a container they end with PID 1.
                if number == signal.SIGKILL:
                    for pid in children(self._process.pid):
                        with suppress(ProcessLookupError):
                            _kill_group(os.getpgid(pid))
                self._process.send_signal(number)

    def _run(self) -> None:
        """Run the process, and restart a native sidecar's after growing pauses.

        Called in a thread. `ended` is set even after a bug, because the pod waits for it.
        """
        pause = 0.5
        try:
            while True:
                self._run_once()
                if not self._restarts or self._stopping.wait(pause):
                    break
                self._restart_count += 1
                pause = min(2 * pause, _LONGEST_PAUSE)
        except Exception:
            log.exception("a bug of the local back end ended the container %s", self.name)
            self.kill()
            self._end(now(), 128, "BackEndError")
        finally:
            self.ended.set()
            self._changed()

    def _run_once(self) -> None:
        started = now()
        try:
            self._termination_message.write_bytes(b"")
            with self._lock:
                self._process = process = subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
                if self._signal:
                    process.send_signal(self._signal)
        except OSError as error:
            self._line(f"cannot start {self._command[0]!r}: {error}")
            self._end(started, 128, "StartError")
            return
        self._state = {"running": {"startedAt": started}}
        self._changed()
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        code = process.wait()
        # When PID 1 ends, everything in its container ends.
        _kill_group(process.pid)
        reader.join(_LAST_LINES_SECONDS)
        code = code if code >= 0 else 128 - code
        self._end(started, code, "Error" if code else "Completed")

    def _end(self, started: str, code: int, reason: str) -> None:
        terminated = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        if message := self._message():
            terminated["message"] = message
        self._state = {"terminated": terminated}
        self._changed()

    def _message(self) -> str:
        try:
            return self._termination_message.read_text(errors="replace")[:_LONGEST_MESSAGE].strip()
        except OSError:  # on a full disk, even the empty file could not be created
            return ""

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on the process's lines, and now and then the state of a progress bar."""
        assert process.stdout is not None
        buffer, last_line_at = b"", time.monotonic()
        with process.stdout as output:
            while chunk := os.read(output.fileno(), _CHUNK):
                *lines, buffer = (buffer + chunk).split(b"\n")
                if len(buffer) > _LONGEST_LINE:
                    lines, buffer = [*lines, buffer], b""
                elif b"\r" in buffer.strip() and time.monotonic() - last_line_at >= _BAR_SECONDS:
                    bar, _, buffer = buffer.rpartition(b"\r")
                    lines.append(bar)
                for line in lines:
                    last_line_at = time.monotonic()
                    self._forward(line)
        if buffer:
            self._forward(buffer)

    def _forward(self, line: bytes) -> None:
        try:
            self._line(last_state(line.decode(errors="replace")).rstrip())
        except Exception:  # if the pipe were not read any more, the program would block
            if not self._drops_lines:
                self._drops_lines = True
                log.exception("lines of the container %s are dropped", self.name)


def now() -> str:
    """Return the current time in Kubernetes' form."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all processes of the group have ended
