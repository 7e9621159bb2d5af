# ruff: noqa: UP017, UP035 - Python 3.8 has to read this file
"""The first process of a replica: runs the command, and ends with 0 only when all is stored.

    python3 supervisor.py -- COMMAND...

It is one file of the standard library (Python 3.8 or later), because it runs in any image, around
any command. What it is told, what it leaves behind and its exit codes are in ARCHITECTURE.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

OK, CONFIGURATION, ORPHANED, NO_PEER, STOPPED, NOT_STORED = 0, 2, 5, 142, 143, 145
MEANING = {
    1: "the command failed for a reason nobody foresaw; its log says more",
    2: "wrong configuration, credentials or model code",
    3: "data is missing or corrupt",
    4: "the loss is not finite",
    5: "orphaned: saved and stopped",
    138: "another replica was lost",
    142: "another replica did not appear in time",
    143: "stopped by a signal",
    145: "not stored: the store was away until the deadline",
}
# A wait that says nothing for longer looks like a process that hangs.
PROGRESS_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # at what the pod is told
_PR_SET_PDEATHSIG = 1
_TRAINS = ("chief", "worker")


class Refused(Exception):
    """The environment is not what the job's manifest promised."""


def log(text: str) -> None:
    """Write one line to the log of the container."""
    print(time.strftime("%H:%M:%S") + " supervisor: " + text, flush=True)


def inventory(folder: Path) -> tuple[int, str]:
    """Return what is to be uploaded from `folder`, as one number and one hash.

    Args:
        folder: OUTPUT_DIR.

    Returns:
        The number of files, and the SHA-256 of the lines `<size> <relative path>` sorted by path.
        Names that begin with `.` or end in `.tmp` or `.part` do not count, links neither.
    """
    digest, number = hashlib.sha256(), 0
    for path, size in sorted(_files(folder, "")):
        digest.update(f"{size} {path}\n".encode(errors="surrogateescape"))
        number += 1
    return number, digest.hexdigest()


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith((".tmp", ".part")):
                continue
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, path + "/")
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.stat(follow_symlinks=False).st_size


def task_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the type and index of this replica; one that is alone is the chief.

    Raises:
        Refused: TF_CONFIG is damaged, names a replica type this project does not train with, or
            has not as many replicas as EXPECTED_REPLICAS.
    """
    text = environment.get("TF_CONFIG", "")
    cluster: Mapping[str, Any] = {}
    kind, index = "chief", 0
    if text:
        try:
            config = json.loads(text)
            cluster = {str(name).lower(): list(item) for name, item in config["cluster"].items()}
            kind, index = str(config["task"]["type"]).lower(), int(config["task"]["index"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(
                f"TF_CONFIG cannot be read. Received: {text[:500]}. Expected: a JSON object with"
                f" cluster and task ({type(error).__name__}: {error})."
            ) from None
    if "master" in cluster or kind == "master":
        raise Refused(
            "TF_CONFIG has a replica of the type Master, which TensorFlow 2 does not know."
            " To do: call it Chief in the manifest of the TFJob."
        )
    trains = {name: len(cluster.get(name, ())) for name in _TRAINS}
    found = sum(trains.values()) if cluster else 1
    expected = environment.get("EXPECTED_REPLICAS", "")
    if expected and expected != str(found):
        what = f"TF_CONFIG names {trains['chief']} chief and {trains['worker']} workers"
        raise Refused(
            f"{what if cluster else 'there is no TF_CONFIG, so this replica is alone'}."
            f" Expected: {expected} replicas (EXPECTED_REPLICAS). To do: the training operator did"
            " not build the cluster of the manifest; look at the TFJob."
        )
    return kind, index


def _chief_of(environment: Mapping[str, str]) -> str:
    """Return the host name of the chief, or nothing when there is none."""
    cluster = json.loads(environment.get("TF_CONFIG") or "{}").get("cluster", {})
    hosts = {str(name).lower(): list(item) for name, item in cluster.items()}.get("chief")
    return str(hosts[0]).rpartition(":")[0] if hosts else ""


class Supervisor:
    """One run of the command.

    Args:
        command: The program and its arguments.
        environment: Of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = list(command)
        self.environment = environment
        self._child = 0
        self._signal = 0
        self._orphaned = False

    def run(self) -> int:
        """Run the command and return the exit code of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        if self.environment.get("PODINFO_DIR"):
            threading.Thread(target=self._listen, daemon=True).start()
        try:
            kind, index = task_of(self.environment)
        except Refused as error:
            return self._end(CONFIGURATION, str(error))
        writes = kind == "chief" or (kind == "worker" and index == 0 and not self._has_chief())
        chief = _chief_of(self.environment) if kind != "chief" else ""
        if chief and not self._appears(chief):
            return self._end(STOPPED if self._signal else NO_PEER)
        code = self._run_command()
        if code != OK:
            return self._end(code)
        if writes and self.environment.get("OUTPUT_DIR"):
            output = Path(self.environment["OUTPUT_DIR"])
            self._record(output)
            if not self._signal and self.environment.get("FLUSH_BARRIER") == "1":
                return self._barrier(output)
        if self._signal:
            return self._end(STOPPED)
        return OK

    def _appears(self, host: str) -> bool:
        """Wait until the chief's name leads somewhere: a replica without one would never end."""
        seconds = float(self.environment.get("START_DEADLINE") or 0)
        start = time.monotonic()
        while seconds and not self._signal:
            try:
                socket.getaddrinfo(host, None)
                return True
            except OSError as error:
                if time.monotonic() - start >= seconds:
                    log(f"{host} did not appear within {seconds:.0f} s: {error}")
                    return False
            time.sleep(_LOOK_SECONDS)
        return not seconds

    def _has_chief(self) -> bool:
        cluster = json.loads(self.environment.get("TF_CONFIG") or "{}").get("cluster", {})
        return any(str(name).lower() == "chief" for name in cluster)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._signal = number
        if self._child:
            log(f"{signal.Signals(number).name}, passed on to the command")
            _kill_group(self._child, number)

    def _listen(self) -> None:
        """Stop when nobody waits for this job any more, or when the pod is told to be quick.

        The launcher changes the heartbeat as long as it lives. Time is counted by this machine
        alone, from the start on, because the launcher may be gone before it has said anything.
        """
        folder = Path(self.environment["PODINFO_DIR"])
        patience = float(self.environment.get("ORPHAN_TIMEOUT") or 0)
        heartbeat, heard, kill_at = "", time.monotonic(), 0.0
        while True:
            now, found = time.monotonic(), _read_text(folder / "heartbeat")
            if found != heartbeat:
                heartbeat, heard = found, now
            if patience and now - heard >= patience and not self._orphaned:
                self._orphaned = True
                log(f"no heartbeat of the launcher for {patience:.0f} s: saving and stopping")
                self._stop(signal.SIGTERM)
            seconds = _seconds(_read_text(folder / "stop-within"))
            if seconds is not None and not kill_at:
                log(f"told to stop within {seconds:.0f} s")
                # The sidecar counts its own time from when the command has ended.
                kill_at = now + seconds / 3
                self._stop(signal.SIGTERM)
            if kill_at and now >= kill_at and self._child:
                log("the command did not stop in time and is killed")
                self._stop(signal.SIGKILL)
            time.sleep(_LOOK_SECONDS)

    def _stop(self, number: int) -> None:
        self._signal = self._signal or signal.SIGTERM
        if self._child:
            _kill_group(self._child, number)

    def _run_command(self) -> int:
        if self._signal:
            return STOPPED
        try:
            child = subprocess.Popen(self.command, preexec_fn=_child_setup())
        except OSError as error:
            log(f"{self.command[0]} cannot be started: {error}")
            return CONFIGURATION
        self._child = child.pid
        if self._signal:  # it came between the check and the start
            _kill_group(child.pid, self._signal)
        status = _reap_until(child.pid)
        self._child = 0
        _kill_group(child.pid, signal.SIGKILL)  # what the command left behind
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            # A command that was told to stop has stopped, even if it had to be ended by force.
            return STOPPED if self._signal == signal.SIGTERM else 128 + number
        return os.WEXITSTATUS(status)

    def _record(self, output: Path) -> None:
        output.mkdir(parents=True, exist_ok=True)
        _write_json(
            output / "completion.json",
            {
                "run_id": self.environment.get("RUN_ID", ""),
                "attempt": int(self.environment.get("ATTEMPT") or 1),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        )

    def _barrier(self, output: Path) -> int:
        """Ask the sidecar whether everything is stored, and wait for its answer."""
        folder = output / ".uploader"
        folder.mkdir(exist_ok=True)
        number, digest = inventory(output)
        request = {
            "id": uuid.uuid4().hex,
            "attempt": int(self.environment.get("ATTEMPT") or 1),
            "files": number,
            "inventory": digest,
        }
        _write_json(folder / "flush-request.json", request)
        seconds = float(self.environment.get("STORE_DEADLINE") or 3600)
        log(f"waiting until {number} files are stored, at most {seconds:.0f} s")
        start = said = time.monotonic()
        reply: Mapping[str, Any] = {}
        while not self._signal:
            found = _read_json(folder / "flush-reply.json")
            if found.get("id") == request["id"]:
                reply = found
            if reply.get("state") == "stored":
                log(f"all {number} files are stored after {time.monotonic() - start:.1f} s")
                return OK
            now = time.monotonic()
            if now - start >= seconds:
                return self._end(NOT_STORED, _not_stored(reply, number, seconds))
            if now - said >= PROGRESS_SECONDS:
                said = now
                log(f"still waiting: {_state(reply, number)}")
            time.sleep(_POLL_SECONDS)
        return self._end(STOPPED, "stopped by a signal while the output was being stored")

    def _end(self, code: int, reason: str = "") -> int:
        """Leave the reason where the cluster shows it, unless the command has left its own."""
        if self._orphaned:
            code, reason = ORPHANED, MEANING[ORPHANED]
        reason = reason or self._reason(code)
        log(f"exit code {code}: {reason}")
        path = Path(self.environment.get("TERMINATION_LOG") or "/dev/termination-log")
        try:
            if path.exists() and not path.stat().st_size:
                path.write_text(reason[:4096])
        except OSError as error:
            log(f"{path} cannot be written: {error}")
        return code

    def _reason(self, code: int) -> str:
        if code in MEANING:
            return MEANING[code]
        if code > 128:
            names = {int(item): item.name for item in signal.Signals}
            cause = " (out of memory, or ended by force)" if code == 128 + signal.SIGKILL else ""
            return f"the command was ended by {names.get(code - 128, code - 128)}{cause}"
        return f"{self.command[0]} ended with {code}"


def _child_setup() -> Callable[[], None]:
    """Return what the child does before the command starts.

    Its own process group keeps signals of a terminal away, which this process passes on instead.
    The kernel kills it when this process is killed, so that no training is left without a parent.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return os.setpgrp

    def setup() -> None:
        os.setpgrp()
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return setup


def _reap_until(child: int) -> int:
    """Wait for the child; the first process of a container inherits every orphan meanwhile."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return status


def _kill_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _not_stored(reply: Mapping[str, Any], number: int, seconds: float) -> str:
    missing = [str(path) for path in reply.get("missing") or []]
    shown = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if missing[20:] else "")
    return (
        f"the model is trained but not stored after {seconds:.0f} s: {_state(reply, number)}."
        + (f" Missing: {shown}." if missing else "")
        + " To do: check the store; the next attempt starts from the newest stored checkpoint."
    )


def _state(reply: Mapping[str, Any], number: int) -> str:
    if not reply:
        return "the sidecar has not answered"
    stored = reply.get("stored")
    done = len(stored) if isinstance(stored, list) else stored
    message = reply.get("message")
    return f"{done} of {number} files are stored" + (f" ({message})" if message else "")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def _read_text(path: Path) -> str:
    """Return the content of a file, or nothing as long as there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _seconds(text: str) -> float | None:
    """Return the seconds of, for instance, `60s`."""
    try:
        return float(text[:-1] if text.endswith("s") else text)
    except ValueError:
        return None


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return an object, or an empty one as long as there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and run."""
    if len(arguments) < 2 or arguments[0] != "--":
        print(__doc__, file=sys.stderr)
        return CONFIGURATION
    return Supervisor(arguments[1:], os.environ).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
