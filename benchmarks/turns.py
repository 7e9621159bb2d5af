"""Runs processes in turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One turn of a process.

    Attributes:
        wall: Seconds of wall time.
        cpu: CPU seconds of all its threads.
    """

    wall: float
    cpu: float


class Player:
    """A new process that does one turn for every line it reads.

    Args:
        module: A module of this package that calls `play`.
        arguments: The arguments of its command line.
        environment: Variables to add to those of this process.
        cores: The only cores it may use.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        cores: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            env=dict(os.environ) | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def go(self) -> None:
        """Start a turn; the first one makes the process ready."""
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def done(self) -> Turn:
        """Wait for the end of the turn."""
        for line in self._process.stdout:
            if line.startswith('{"wall"'):
                return Turn(**json.loads(line))
        raise SystemExit(f"{' '.join(self._process.args)} exited with code {self._process.wait()}")

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def wait_for_turn() -> None:
    """Return when the parent says go; exit if the parent is gone."""
    if not sys.stdin.readline():
        os._exit(0)


def say(wall: float, cpu: float) -> None:
    """Report the end and the cost of a turn to the parent."""
    print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)


def play(turn: Callable[[], None]) -> None:
    """Take turns without end; the first one is a warm-up."""
    while True:
        wait_for_turn()
        wall, cpu = time.perf_counter(), time.process_time()
        turn()
        say(time.perf_counter() - wall, time.process_time() - cpu)


def cores(number: int) -> list[int]:
    """Return the first cores this process may use.

    Raises:
        SystemExit: There are fewer.
    """
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < number:
        raise SystemExit(f"this needs {number} cores, but there are only {len(mine)}")
    return mine[:number]
