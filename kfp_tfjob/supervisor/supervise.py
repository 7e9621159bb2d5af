"""Runs a replica from its start to its exit code.

The supervisor is PID 1, so that something survives the trainer. It restarts the trainer, waits
until the chief's output is stored, and exits with a code that tells the launcher who caused the
end.
Called by `__main__.py`, which the job manifest names as the container's command.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import Mapping, Sequence

from . import exit_codes, keras, peers, termination_message
from .barrier import pass_barrier, record_completion
from .child import Child
from .environment import Environment, Refused
from .kernel import adopt_orphans, children
from .log import log
from .restarts import Restarts
from .stop import Stop
from .tf_config import Topology, expand

_POLL_SECONDS = 0.05  # a short pause, because every restart and every end waits for it
_PEER_SECONDS = 10.0  # between two log lines about missing peers
# Seconds: a restarted peer is back long before this; otherwise its node is lost.
_RETURN_SECONDS = 300.0


class Supervisor:
    """A replica.

    Args:
        command: The program and its arguments.
        variables: The environment of this process.
        early: Signals that arrived before.
    """

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], early: Sequence[int] = ()
    ) -> None:
        self.command, self.variables = list(command), variables
        self._stop = Stop(early)
        self._message = termination_message.path_of(variables)
        self._environment, self._cluster = Environment(), Topology()
        self._restarts = Restarts(self._environment)
        self._patience = math.inf  # seconds left to wait for the peers
        self._began, self._step = time.monotonic(), 0

    def run(self) -> int:
        """Run the command and return the exit code of this process."""
        self._stop.listen()
        adopt_orphans()
        try:
            self._environment = environment = Environment.read(self.variables)
            self._cluster = Topology.read(self.variables)
        except Refused as error:
            return self._end(exit_codes.CONFIGURATION, str(error))
        overrides = keras.choose(self.command, self.variables, self._cluster.size)
        overrides.update(self._cluster.without_proxy(self.variables))
        if not environment.chief_in_tf_config:
            # It replaces the operator's TF_CONFIG, which has the chief that the job needs.
            overrides.update(self._cluster.without_chief.tf_config)
        self.variables = {**self._cluster.variables, **self.variables, **overrides}
        self.command = expand(self.command, self.variables)
        self._restarts, self._patience = Restarts(environment), environment.start_deadline
        if environment.podinfo_dir:
            self._stop.follow(environment.podinfo_dir, environment.orphan_timeout)
        wait_start, chief = time.monotonic(), self._cluster.peers.get("chief", "")
        absent = peers.wait_for_chief(chief, self._patience, self._stop)
        self._patience -= time.monotonic() - wait_start
        if absent:
            return self._end(exit_codes.NOT_STARTED, absent)
        code, reason = self._run_command()
        if code == exit_codes.DONE and self._stop:  # many programs return 0 when told to stop
            code = exit_codes.STOPPED
        if code == exit_codes.DONE:
            code, reason = self._store()
        if code:
            return self._end(code, reason)
        self._record(code, exit_codes.MEANING[code])
        return code

    def _store(self) -> tuple[int, str]:
        """Write the completion record, and wait until it and all other output are stored."""
        environment = self._environment
        if not self._cluster.writes or not environment.output_dir:
            return exit_codes.DONE, ""
        try:
            record_completion(environment.output_dir, environment.run_id, environment.attempt)
            if self._stop:
                return exit_codes.STOPPED, ""
            if environment.flush_barrier:
                return pass_barrier(
                    environment.output_dir,
                    environment.attempt,
                    environment.store_deadline,
                    self._stop,
                )
        except OSError as error:
            return exit_codes.CONFIGURATION, f"{environment.output_dir} cannot be written: {error}"
        return exit_codes.DONE, ""

    def _run_command(self) -> tuple[int, str]:
        """Run the command, restart it if that helps, and return its exit code and the problem."""
        code = exit_codes.DONE
        # From its first line on, the launcher counts how long a chief is silent.
        log(f"starting {self.command[0]}")
        while not self._stop:
            try:
                restarts = {"RESTARTS": str(self._restarts.count)}
                child = Child(self.command, {**self.variables, **restarts})
            except OSError as error:
                return exit_codes.CONFIGURATION, f"{self.command[0]} cannot be started: {error}"
            code, reason = self._follow(child)
            if reason or self._stop:
                return code, reason
            if child.started:
                self._patience = min(self._environment.start_deadline, _RETURN_SECONDS)
            else:
                self._patience -= time.monotonic() - child.start_time
            decision = self._restarts.decide(code, child.done, child.tried, self._patience)
            if not decision.again:
                return decision.code, decision.reason
            log(
                f"restart {self._restarts.count} of {self._restarts.most}"
                + (f" in {decision.pause:.1f} s" if decision.pause else "")
                + f": {decision.reason}"
            )
            self._forget_message()
            restart_time = time.monotonic() + decision.pause
            while time.monotonic() < restart_time and not self._stop:
                time.sleep(_POLL_SECONDS)
        return exit_codes.STOPPED, ""

    def _follow(self, child: Child) -> tuple[int, str]:
        """Wait for a command; return its exit code, and the problem if its peers were absent.

        A command that waits for its peers longer than `_patience` is killed.
        """
        absence, last_look = "", 0.0
        while True:
            status = self._reap(child)
            if status is not None:
                if self._stop and os.WIFSIGNALED(status):
                    self._wait_for_rest(child)
                break
            child.read_progress(_POLL_SECONDS, self._stop.wakeup)
            # `waiting_since` is infinite, and so `waited` is -inf, unless it waits for its peers.
            waited = time.monotonic() - child.waiting_since
            if self._stop:
                child.stop(signal.SIGKILL if self._stop.by_force else self._stop.signal)
            elif absence:
                continue  # the command has been killed and will end soon
            elif waited >= self._patience:
                child.kill()
                absence = self._describe_absence(waited)
            elif child.waiting and waited - last_look >= _PEER_SECONDS:
                last_look = waited
                self._log_absent_peers(child)
        child.read_progress(0, -1)  # its last lines may still be in the pipe
        self._step = child.done or self._step  # without a report, the last command's
        child.clean_up()
        self._end_strays()
        if absence:
            return exit_codes.NOT_STARTED, absence
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        # A command that was told to stop counts as stopped, even if it had to be killed, or lost
        # its peers, which were told to stop as well.
        return (exit_codes.STOPPED if self._stop and code > 128 else code), ""

    def _wait_for_rest(self, child: Child) -> None:
        """Wait for the processes of a command that the signal to stop has ended.

        A shell or a launcher ends at once, while the program that it started still saves. As for
        the program itself, only a stop by force or the end of the grace period limits this.
        """
        child.ended = True
        while child.remaining() and not self._stop.by_force:
            child.stop(self._stop.signal)
            child.read_progress(_POLL_SECONDS, self._stop.wakeup)
            self._reap(child)

    def _reap(self, child: Child) -> int | None:
        """Return the status of the child once it has ended.

        The first process of a container inherits every orphan, which must not stay a zombie.
        """
        child_status = None
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # no child is left
                return child_status
            if not ended:
                return child_status
            if ended == child.pid:
                child_status = status

    def _end_strays(self) -> None:
        """Kill the processes that the command started and that left its group.

        They would block the ports and GPUs of the next command, or write to the output.
        """
        for _ in range(20):  # wait up to one second for a process that does not die at once
            strays = children()
            if not strays:
                return
            for pid in strays:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL_SECONDS)

    def _describe_absence(self, waited: float) -> str:
        absent = peers.absent(self._cluster.peers)
        if not absent:
            return f"all others are listening, but the start took longer than {waited:.0f} s"
        return f"another replica did not appear within {waited:.0f} s: {absent}"

    def _log_absent_peers(self, child: Child) -> None:
        """Log the absent peers, in the background: a slow name server must not delay a signal."""

        def log_absent_peers() -> None:
            absent = peers.absent(self._cluster.peers)
            if child.waiting:
                log(f"still waiting for {absent or 'the other replicas, which are all listening'}")

        threading.Thread(target=log_absent_peers, daemon=True).start()

    def _end(self, code: int, reason: str = "") -> int:
        """Write the reason where the cluster shows it, unless the command has written its own."""
        if self._stop.orphaned:
            code = exit_codes.ORPHANED
            reason = exit_codes.MEANING[code]
        # A reason that only this process can give replaces the command's.
        if reason:
            self._forget_message()
        reason = reason or exit_codes.meaning_of(code)
        log(f"exit code {code}: {reason}")
        self._record(code, reason)
        try:
            if self._message.exists() and not self._message.stat().st_size:
                termination_message.write(self._message, reason)
        except OSError as error:
            log(f"{self._message} cannot be written: {error}")
        return code

    def _record(self, code: int, reason: str) -> None:
        """Let the sidecar store the chief's end, because the launcher may be gone by then."""
        environment = self._environment
        if environment.flush_barrier and environment.output_dir and self._cluster.writes:
            elapsed = round(time.monotonic() - self._began, 1)
            end = {"code": code, "signal": self._stop.signal, "reason": reason, "seconds": elapsed}
            termination_message.record(environment, dict(end, step=self._step))

    def _forget_message(self) -> None:
        """Delete the command's message, because it does not explain this end."""
        try:
            termination_message.write(self._message, "")
        except OSError as error:
            log(f"{self._message} cannot be written: {error}")
