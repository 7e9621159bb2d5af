# ruff: noqa: UP017, UP035 - Python 3.8 has to read this file
"""The first process of a replica: runs the command, and ends with 0 only when all is stored.

    python3 supervisor.py -- COMMAND...

It is one file of the standard library (Python 3.8 or later), because it runs in any image, around
any command. What it is told, what it leaves behind and its exit codes are in ARCHITECTURE.md.
"""

from __future__ import annotations

import signal

# As the first process of a container it is given only the signals that it handles: one that comes
# while the other modules are loaded would be lost, and the pod be killed after its grace period.
_EARLY: list[int] = []
_STOPPING = (signal.SIGTERM, signal.SIGINT)
if __name__ == "__main__":
    for _number in _STOPPING:
        signal.signal(_number, lambda number, _frame: _EARLY.append(number))

import ctypes
import hashlib
import json
import math
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

OK, FAILED, CONFIGURATION, ORPHANED = 0, 1, 2, 5
PEER_LOST, NO_PEER, STOPPED, NOT_STORED = 138, 142, 143, 145
MEANING = {
    1: "the command failed for a reason nobody foresaw; its log says more",
    2: "wrong configuration, credentials or model code",
    3: "data is missing or corrupt",
    4: "the loss is not finite",
    5: "orphaned: saved and stopped",
    138: "another replica was lost",
    142: "not started, for instance because another replica did not appear in time",
    143: "stopped by a signal",
    145: "not stored: the store was away until the deadline",
}
# A wait that says nothing for longer looks like a process that hangs.
PROGRESS_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.5  # at what the pod is told
_PEER_SECONDS = 10.0  # between two lines about peers that are missing
# A peer that was there and started again is back long before this; else its node is lost.
_RETURN_SECONDS = 300.0
_SAME_STEPS = 3  # deaths without progress in between that are a crash loop
_LONGEST_PAUSE = 30.0
_LONGEST_LINE = 100  # bytes that a command says of itself
_SPARE_BYTES = 1 << 30  # TensorFlow takes 0.6 GB
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TRAINS = ("chief", "worker")


class Refused(Exception):
    """The environment is not what the job's manifest promised."""


def log(text: str) -> None:
    """Write one line to the log of the container; where nobody reads it, the training goes on."""
    line = time.strftime("%H:%M:%S") + " supervisor: " + text + "\n"
    try:
        os.write(1, line.encode(errors="backslashreplace"))
    except OSError:
        return


def inventory(folder: Path) -> tuple[int, str]:
    """Return what is to be uploaded from `folder`, as one number and one hash.

    Args:
        folder: OUTPUT_DIR.

    Returns:
        The number of files, and the SHA-256 of the lines `<size> <relative path>` sorted by path.
        Names that begin with `.` or end in `.tmp` or `.part` do not count, links neither, nor
        what vanishes meanwhile.

    Raises:
        OSError: A folder cannot be read.
    """
    digest, number = hashlib.sha256(), 0
    for path, size in sorted(_files(folder, "")):
        digest.update(f"{size} {path}\n".encode(errors="surrogateescape"))
        number += 1
    return number, digest.hexdigest()


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        found = list(os.scandir(folder))
    except FileNotFoundError:
        if not prefix:
            raise
        return
    for entry in found:
        if entry.name.startswith(".") or entry.name.endswith((".tmp", ".part")):
            continue
        path = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder / entry.name, path + "/")
        elif entry.is_file(follow_symlinks=False):
            try:
                yield path, entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue


@dataclass(frozen=True)
class Limits:
    """The numbers among what the environment says; 0 for what it does not say.

    Attributes:
        attempt: From 1.
        restarts: How often the command may be started again.
        start: Seconds to wait for the other replicas.
        store: Seconds to wait for the sidecar.
        orphan: Seconds to live without a heartbeat.
    """

    attempt: int
    restarts: int
    start: float
    store: float
    orphan: float

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Limits:
        """Read the environment.

        Raises:
            Refused: What should be a number is none.
        """

        def number(name: str) -> float:
            text = environment.get(name) or "0"
            found = _seconds(text)
            if found is None or found < 0:
                raise Refused(
                    f"{name} is not valid. Received: {text!r}. Expected: a number, 0 or more."
                )
            return found

        return cls(
            int(number("ATTEMPT")) or 1,
            int(number("MAX_RESTARTS")),
            number("START_DEADLINE"),
            number("STORE_DEADLINE") or 3600.0,
            number("ORPHAN_TIMEOUT"),
        )


@dataclass(frozen=True)
class Cluster:
    """TF_CONFIG: which replica this is, and where the others are.

    Attributes:
        kind: The type of this replica, for instance `worker`; one that is alone is the chief.
        index: Its number among those of its type.
        members: The addresses of the replicas, by their type.
    """

    kind: str = "chief"
    index: int = 0
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Cluster:
        """Read the environment.

        Raises:
            Refused: TF_CONFIG is damaged, has no place for this replica or two at one address,
                names a replica type this project does not train with, or has not as many
                replicas as EXPECTED_REPLICAS.
        """
        text = environment.get("TF_CONFIG", "")
        cluster = cls()
        if text:
            try:
                config = json.loads(text)
                members = config["cluster"].items()
                cluster = cls(
                    str(config["task"]["type"]).lower(),
                    int(config["task"]["index"]),
                    {str(name).lower(): [str(host) for host in hosts] for name, hosts in members},
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Refused(
                    f"TF_CONFIG cannot be read. Received: {text[:500]}. Expected: a JSON object"
                    f" with cluster and task ({type(error).__name__}: {error})."
                ) from None
        if "master" in cluster.members or cluster.kind == "master":
            raise Refused(
                "TF_CONFIG has a replica of the type Master, which TensorFlow 2 does not know."
                " Fix: call it Chief in the manifest of the TFJob."
            )
        trains = {name: len(cluster.members.get(name, ())) for name in _TRAINS}
        found = sum(trains.values()) if cluster.members else 1
        expected = environment.get("EXPECTED_REPLICAS", "")
        if expected and expected != str(found):
            what = f"TF_CONFIG names {trains['chief']} chief and {trains['worker']} workers"
            raise Refused(
                f"{what if cluster.members else 'there is no TF_CONFIG, so this replica is alone'}."
                f" Expected: {expected} replicas (EXPECTED_REPLICAS). Fix: the training operator"
                " did not build the cluster of the manifest; look at the TFJob."
            )
        wrong = cluster._contradiction()
        if wrong:
            raise Refused(
                f"TF_CONFIG contradicts itself: {wrong}. Received: {text[:500]}. Expected: an"
                " address name:port of its own for each replica, and this one among them. Fix:"
                " look at the TFJob."
            )
        return cluster

    def _contradiction(self) -> str:
        """Return why this cluster cannot be; else others would wait for it until the deadline."""
        if not self.members:
            return ""
        known = len(self.members.get(self.kind, ()))
        # Estimators keep the evaluator out of the cluster, and so do programs that have learnt it.
        outside = self.kind == "evaluator" and not known
        if not outside and not 0 <= self.index < known:
            return f"there is no {self.kind} {self.index} in it"
        seen: set[str] = set()
        for address in (address for hosts in self.members.values() for address in hosts):
            if address in seen:
                return f"{address} is the address of two replicas"
            seen.add(address)
            host, port = _host_and_port(address)
            if not host or not port.isdecimal():
                return f"{address} is no address"
        return ""

    @property
    def writes(self) -> bool:
        """Whether this replica leaves the output: the chief, or the first worker without one."""
        first_worker = (self.kind, self.index) == ("worker", 0)
        return self.kind == "chief" or (first_worker and "chief" not in self.members)

    @property
    def peers(self) -> dict[str, str]:
        """The other replicas that train, for instance {"worker 1": "host:port"}."""
        return {
            kind if kind == "chief" else f"{kind} {at}": address
            for kind in _TRAINS
            for at, address in enumerate(self.members.get(kind, ()))
            if (kind, at) != (self.kind, self.index)
        }

    def absent_peers(self) -> str:
        """Return the names of the peers that do not listen, with the reasons; empty for none."""
        with ThreadPoolExecutor(16) as pool:
            found = [who for who in pool.map(_if_absent, self.peers.items()) if who]
        more = f" and {len(found) - 8} more" if found[8:] else ""
        return ", ".join(found[:8]) + more


class Child:
    """A command under way, and what it has said of itself through the pipe SUPERVISOR_PIPE.

    The words are lines: `waiting` before it waits for its peers, `started` when it can be told to
    stop, `steps A B` when A steps are done and those up to B follow. A command may say nothing.

    Args:
        command: The program and its arguments.
        environment: Of the command.
        spare: Whether it waits until it is told to go.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], spare: bool = False
    ) -> None:
        ear, mouth = os.pipe()
        values = dict(environment, SUPERVISOR_PIPE=str(mouth))
        if spare:
            values["WAIT_FOR_GO"] = "1"
        try:
            self._process = subprocess.Popen(
                list(command),
                env=values,
                pass_fds=[mouth],
                stdin=subprocess.PIPE if spare else None,
                preexec_fn=_child_setup(spare),
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
        self.started = self.stepped = False
        self.done = self.tried = 0
        self._told = 0

    @property
    def waiting(self) -> bool:
        """Whether it waits for its peers."""
        return self.waiting_since < math.inf

    def hear(self, seconds: float, bell: int) -> None:
        """Take in what the command says, for at most `seconds` or until there is a signal.

        Args:
            seconds: How long.
            bell: The descriptor on which a signal shows; -1 for none.
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
        # A user's own command may write there by mistake, and without end.
        self._heard = self._heard[-_LONGEST_LINE:]
        for line in lines:
            self._take(line[:_LONGEST_LINE].decode(errors="replace"))

    def _take(self, line: str) -> None:
        word, *numbers = line.split()[:3] or [""]
        if word == "waiting":
            self.waiting_since = time.monotonic()
        elif word == "started":
            self.waiting_since, self.started = math.inf, True
            self._told = 0  # what it was told while it started may have been lost
        elif word == "steps" and len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            done, tried = map(int, numbers)
            # What is done before the first of these lines was done by an earlier command.
            self.stepped = self.stepped or 0 < self.tried <= done
            self.done, self.tried = done, tried

    def go(self, before: int) -> None:
        """Let a spare begin, and tell it how the command before it has ended."""
        self.born = time.monotonic()
        try:
            self._process.stdin.write(f"go {before}\n".encode())
            self._process.stdin.close()
        except OSError:
            return  # it has died, which shows in its status

    def stop(self, number: int) -> None:
        """Send the command a signal, once."""
        if self.waiting:
            # There is nothing to save yet, and TensorFlow swallows the signal in these moments.
            number = signal.SIGKILL
        if number != self._told:
            self._told = number
            log(f"{signal.Signals(number).name} for the command")
            self.kill(number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command and to what it has started."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def bury(self) -> None:
        """Let go of a command whose end was seen, and end what it left behind."""
        self.kill()
        self._process.returncode = 0  # its status is not to be asked for again
        if self._ear >= 0:
            os.close(self._ear)
            self._ear = -1


@dataclass(frozen=True)
class Decision:
    """What follows the end of a command.

    Attributes:
        again: Whether it is started again.
        code: Else, the exit code of the replica.
        reason: Why not; empty for what the code means.
        pause: Seconds before the next start.
    """

    again: bool
    code: int
    reason: str = ""
    pause: float = 0.0


class Restarts:
    """Decides whether a command that has ended is started again inside the pod.

    Args:
        most: How often it may be; 0 for a user's own command.
    """

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self._fruitless = self._own = self._tried = 0

    def decide(self, code: int, done: int, tried: int, patience: float) -> Decision:
        """Decide after an end that nobody asked for.

        Args:
            code: Exit code.
            done: Steps the command had done.
            tried: The steps under way reached up to this one.
            patience: Seconds left to wait for peers.
        """
        if code < 128 or code in (STOPPED, NOT_STORED) or not self.most:
            return Decision(False, code)
        # Progress is to pass the steps in which it ended the last time.
        if done >= max(self._tried, 1):
            self._fruitless = self._own = 0
        self._tried = max(tried, self._tried)
        self._fruitless += 1
        self._own += code not in (PEER_LOST, NO_PEER)
        if self._own >= _SAME_STEPS:
            where = f"in the steps {done + 1} to {tried}" if tried else "before the first step"
            return Decision(
                False,
                FAILED,
                f"{reason_of(code)}, {self._own} times without getting further, the last time"
                f" {where}: starting again does not help. Fix: look at the log; if memory ran"
                " out, raise pod.all.memory or lower train_batch_size",
            )
        if self.count >= self.most:
            return Decision(False, code, f"{reason_of(code)}, after {self.count} restarts")
        if code == NO_PEER and patience <= 0:
            return Decision(False, code)
        self.count += 1
        # The first one is at once; what goes on failing needs time rather than another try.
        pause = min(2.0 ** (self._fruitless - 2), _LONGEST_PAUSE) if self._fruitless > 1 else 0.0
        return Decision(True, code, reason_of(code), pause * random.uniform(0.5, 1))


class Supervisor:
    """A replica, from its start to its exit code.

    Args:
        command: The program and its arguments.
        environment: Of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = list(command)
        self.environment = environment
        self._spare: Child | None = None
        self._signal = 0
        self._killed = self._orphaned = False
        self._bell = -1

    def run(self) -> int:
        """Run the command and return the exit code of this process."""
        self._listen_to_signals()
        if prctl := _prctl():  # orphans come to this process, also where it is not the first one
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._limits = Limits.read(self.environment)
            self._cluster = Cluster.read(self.environment)
        except Refused as error:
            return self._end(CONFIGURATION, str(error))
        self._restarts = Restarts(self._limits.restarts)
        # Seconds that are left to wait for the peers.
        self._patience = self._limits.start or math.inf
        if self.environment.get("PODINFO_DIR"):
            threading.Thread(target=self._listen, daemon=True).start()
        absent = self._wait_for_chief()
        if absent:
            return self._end(NO_PEER, absent)
        try:
            code, reason = self._run_command()
        finally:
            if self._spare:
                self._spare.kill()
        if code != OK:
            return self._end(code, reason)
        if self._signal:  # many a program ends with 0 when it was told to stop
            return self._end(STOPPED)
        if self._cluster.writes and self.environment.get("OUTPUT_DIR"):
            output = Path(self.environment["OUTPUT_DIR"])
            try:
                self._record(output)
                if not self._signal and self.environment.get("FLUSH_BARRIER") == "1":
                    return self._barrier(output)
            except OSError as error:
                return self._end(CONFIGURATION, f"{output} cannot be written: {error}")
        if self._signal:
            return self._end(STOPPED)
        return OK

    def _wait_for_chief(self) -> str:
        """Wait until the chief's name leads somewhere, and return what is wrong if it does not.

        A process that asks for it too early is told for long that there is none.
        """
        address = self._cluster.peers.get("chief", "")
        start, given = time.monotonic(), self._patience
        # Not in this thread: a name server that is slow must not hold up a signal.
        pool, look, error = ThreadPoolExecutor(1), None, "the name server does not answer"
        while address and given < math.inf and not self._signal:
            look = look or pool.submit(socket.getaddrinfo, _host_and_port(address)[0], None)
            if look in wait([look], _LOOK_SECONDS).done:
                found = look.exception()
                if not found:
                    break
                look, error = None, getattr(found, "strerror", None) or str(found)
                time.sleep(_LOOK_SECONDS)
            if time.monotonic() - start >= given:
                return (
                    f"another replica did not appear within {given:.0f} s: chief ({address}:"
                    f" {error})"
                )
        self._patience -= time.monotonic() - start
        return ""

    def _listen_to_signals(self) -> None:
        """Remember those that mean to stop, and wake up at the end of a child."""
        self._bell, clapper = os.pipe()
        os.set_blocking(clapper, False)
        signal.set_wakeup_fd(clapper, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _STOPPING:
            signal.signal(number, self._remember)
        if _EARLY:
            self._signal = _EARLY[-1]

    def _remember(self, number: int, _frame: object) -> None:
        self._signal = number

    def _listen(self) -> None:
        """Stop when nobody waits for this job any more, or when the pod is told to be quick.

        The launcher changes the heartbeat as long as it lives. Time is counted by this machine
        alone, from the start on, because the launcher may be gone before it has said anything.
        """
        folder = Path(self.environment["PODINFO_DIR"])
        patience, told = self._limits.orphan, False
        heartbeat, heard, kill_at = "", time.monotonic(), math.inf
        while not self._killed:
            now, found = time.monotonic(), _read_text(folder / "heartbeat")
            if found != heartbeat:
                heartbeat, heard = found, now
            if patience and now - heard >= patience and not self._orphaned:
                self._orphaned = True
                log(f"no heartbeat of the launcher for {patience:.0f} s: saving and stopping")
                # A command that does not listen must not keep its GPUs for ever.
                kill_at = min(kill_at, now + patience)
                self._signal = self._signal or signal.SIGTERM
            seconds = _seconds(_read_text(folder / "stop-within"))
            if seconds is not None and not told:
                told = True
                log(f"told to stop within {seconds:.0f} s")
                # The sidecar counts its own time from when the command has ended.
                kill_at = min(kill_at, now + seconds / 3)
                self._signal = self._signal or signal.SIGTERM
            self._killed = now >= kill_at
            time.sleep(_LOOK_SECONDS)

    def _run_command(self) -> tuple[int, str]:
        """Run the command, again where that helps, and return its exit code and what is wrong."""
        code = OK
        while not self._signal:
            try:
                child = self._next_child(code)
            except OSError as error:
                return CONFIGURATION, f"{self.command[0]} cannot be started: {error}"
            code, reason = self._follow(child)
            if reason or self._signal:
                return code, reason
            if child.started:
                self._patience = min(self._limits.start or math.inf, _RETURN_SECONDS)
            else:
                self._patience -= time.monotonic() - child.born
            decision = self._restarts.decide(code, child.done, child.tried, self._patience)
            if not decision.again:
                return decision.code, decision.reason
            log(
                f"restart {self._restarts.count} of {self._restarts.most}"
                + (f" in {decision.pause:.1f} s" if decision.pause else "")
                + f": {decision.reason}"
            )
            self._forget_words()
            over = time.monotonic() + decision.pause
            while time.monotonic() < over and not self._signal:
                time.sleep(_POLL_SECONDS)
        return STOPPED, ""

    def _next_child(self, before: int) -> Child:
        if not self._spare:
            return Child(self.command, self._environment(self._restarts.count))
        child, self._spare = self._spare, None
        child.go(before)
        return child

    def _environment(self, restarts: int) -> dict[str, str]:
        return dict(self.environment, RESTARTS=str(restarts))

    def _follow(self, child: Child) -> tuple[int, str]:
        """Return the exit code of a command that runs, and what is wrong if only we know."""
        spare_wanted = self.environment.get("WARM_SPARE") == "1" and self._restarts.most > 0
        late, look = "", 0.0
        while True:
            status = self._reap(child)
            if status is not None:
                break
            child.hear(_POLL_SECONDS, self._bell)
            waited = time.monotonic() - child.waiting_since
            if self._signal:
                child.stop(signal.SIGKILL if self._killed else self._signal)
            elif late:
                continue  # it is dying
            elif waited >= self._patience:
                child.kill()
                late = self._absent(waited)
            elif child.waiting and waited - look >= _PEER_SECONDS:
                look = waited
                self._say_who_is_absent(child)
            if spare_wanted and child.stepped and not self._spare:
                spare_wanted = False
                self._spare = self._start_spare()
        child.hear(0, -1)  # its last words may not have been taken in
        child.bury()
        self._end_strays()
        if late:
            return NO_PEER, late
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        # A command that was told to stop has stopped, even if it had to be ended by force or lost
        # its peers, which were told to stop as well.
        return (STOPPED if self._signal and code > 128 else code), ""

    def _reap(self, child: Child) -> int | None:
        """Return the status of the child once it has ended.

        The first process of a container inherits every orphan, which must not stay a zombie.
        """
        found = None
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if not ended:
                return found
            if ended == child.pid:
                found = status
            elif self._spare and ended == self._spare.pid:
                log("the warm spare has ended")
                self._spare.bury()
                self._spare = None

    def _end_strays(self) -> None:
        """End what the command has started and what has left its group.

        It would hold the ports and the GPUs of the next command, or write to the output.
        """
        spare = self._spare.pid if self._spare else 0
        mine = Path(f"/proc/self/task/{os.getpid()}/children")
        for _ in range(20):  # whoever cannot be killed now is waited for one second
            strays = [pid for pid in map(int, _read_text(mine).split()) if pid != spare]
            if not strays:
                return
            for pid in strays:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so it is no other process
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL_SECONDS)

    def _start_spare(self) -> Child | None:
        left = memory_left()
        if left < _SPARE_BYTES:
            log(f"no warm spare: only {left / 2**20:.0f} MiB of memory are left")
            return None
        try:
            return Child(self.command, self._environment(self._restarts.count + 1), spare=True)
        except OSError as error:
            log(f"no warm spare: {error}")
            return None

    def _absent(self, waited: float) -> str:
        absent = self._cluster.absent_peers()
        if not absent:
            return f"all other replicas listen, but the start did not end within {waited:.0f} s"
        return f"another replica did not appear within {waited:.0f} s: {absent}"

    def _say_who_is_absent(self, child: Child) -> None:
        """Look in the background: a name server that is slow must not hold up a signal."""

        def look() -> None:
            absent = self._cluster.absent_peers()
            if child.waiting:
                log(f"still waiting for {absent or 'the other replicas, which all listen'}")

        threading.Thread(target=look, daemon=True).start()

    def _record(self, output: Path) -> None:
        output.mkdir(parents=True, exist_ok=True)
        _write_json(
            output / "completion.json",
            {
                "run_id": self.environment.get("RUN_ID", ""),
                "attempt": self._limits.attempt,
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        )

    def _barrier(self, output: Path) -> int:
        """Ask the sidecar whether everything is stored, and wait for its answer."""
        folder, seconds = output / ".uploader", self._limits.store
        folder.mkdir(exist_ok=True)
        request = self._ask(output)
        number = request["files"]
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
                # Something that the command has left behind, and that cannot be ended, writes.
                if inventory(output) != (number, request["inventory"]):
                    request = self._ask(output)
                    number = request["files"]
                    log(f"{output} has changed meanwhile: now it has {number} files")
            time.sleep(_POLL_SECONDS)
        return self._end(STOPPED, "stopped by a signal while the output was being stored")

    def _ask(self, output: Path) -> Mapping[str, Any]:
        """Write what the sidecar is asked at the barrier, and return it."""
        number, digest = inventory(output)
        request = {
            "id": uuid.uuid4().hex,
            "attempt": self._limits.attempt,
            "files": number,
            "inventory": digest,
        }
        _write_json(output / ".uploader" / "flush-request.json", request)
        return request

    def _end(self, code: int, reason: str = "") -> int:
        """Leave the reason where the cluster shows it, unless the command has left its own."""
        if self._orphaned:
            code, reason = ORPHANED, MEANING[ORPHANED]
        # What only this process knows counts more than what the command has said of it.
        if reason:
            self._forget_words()
        reason = reason or reason_of(code)
        log(f"exit code {code}: {reason}")
        path = self._words
        try:
            if path.exists() and not path.stat().st_size:
                path.write_bytes(reason.encode(errors="backslashreplace")[:4096])
        except OSError as error:
            log(f"{path} cannot be written: {error}")
        return code

    @property
    def _words(self) -> Path:
        return Path(self.environment.get("TERMINATION_LOG") or "/dev/termination-log")

    def _forget_words(self) -> None:
        """Take back what the command said of an end that was not the last one."""
        try:
            if self._words.exists():
                self._words.write_text("")
        except OSError as error:
            log(f"{self._words} cannot be written: {error}")


def reason_of(code: int) -> str:
    """Return what an exit code means."""
    if code in MEANING:
        return MEANING[code]
    if code > 128:
        names = {int(item): item.name for item in signal.Signals}
        cause = " (out of memory, or ended by force)" if code == 128 + signal.SIGKILL else ""
        return f"the command was ended by {names.get(code - 128, code - 128)}{cause}"
    return f"the command ended with {code}"


def memory_left() -> float:
    """Return the bytes this container may still take: infinite where nobody tells."""
    found = math.inf
    for line in _read_text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found = int(line.split()[1]) * 1024.0
    for folder, most, used, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file ",
        ),
    ):
        limit, now = (_read_text(Path(folder, name)) for name in (most, used))
        if limit.isdecimal() and now.isdecimal():
            # What was read from files and can be forgotten is counted as used.
            stat = _read_text(Path(folder, "memory.stat")).splitlines()
            forgettable = sum(int(line.split()[1]) for line in stat if line.startswith(cache))
            found = min(found, int(limit) - int(now) + forgettable)
    return found


def _if_absent(peer: tuple[str, str]) -> str:
    """Return the name of a peer, where it should be and the error; empty when it listens."""
    name, address = peer
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        return ""
    except (OSError, ValueError) as error:
        return f"{name} ({address}: {getattr(error, 'strerror', None) or error})"


def _host_and_port(address: str) -> tuple[str, str]:
    """Return the parts of, for instance, `name:2222` or `[::1]:2222`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def _prctl() -> Callable[..., int] | None:
    """Return prctl(2), or None where there is none."""
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None


def _child_setup(spare: bool) -> Callable[[], None]:
    """Return what the child does before the command starts.

    Its own process group keeps signals of a terminal away, which this process passes on instead.
    The kernel kills it when this process is killed, so that no training is left without a parent.
    Where memory runs out, a spare is the first that is ended.
    """
    prctl = _prctl()

    def setup() -> None:
        os.setpgrp()
        if prctl:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if spare:
            # Nothing that might import: another thread may hold the lock for ever.
            try:
                file = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
                os.write(file, b"1000")
                os.close(file)
            except OSError:
                return

    return setup


def _not_stored(reply: Mapping[str, Any], number: int, seconds: float) -> str:
    missing = [str(path) for path in reply.get("missing") or []]
    shown = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if missing[20:] else "")
    return (
        f"the model is trained but not stored after {seconds:.0f} s: {_state(reply, number)}."
        + (f" Missing: {shown}." if missing else "")
        + " Fix: check the store; the next attempt starts from the newest stored checkpoint."
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
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _seconds(text: str) -> float | None:
    """Return the seconds of, for instance, `60s`; None for what is no number of them."""
    try:
        found = float(text[:-1] if text.endswith("s") else text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


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
        print(__doc__, file=sys.stderr, flush=True)
        return CONFIGURATION
    return Supervisor(arguments[1:], os.environ).run()


if __name__ == "__main__":
    # Not sys.exit, which waits for the threads that look for peers.
    os._exit(main(sys.argv[1:]))
