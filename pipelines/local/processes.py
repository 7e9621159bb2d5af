"""Finds every process of a local run by the run's token in its environment.

Parents and process groups do not help: a step starts shells, supervisors and trainers in groups of
their own, and a process gets a new parent when its parent is killed.

    python -m kfp_tfjob.pipelines.local.processes TOKEN

This is the watchdog. It ends every process of a run when the command line ends, even by SIGKILL:
the kernel closes the pipe on standard input when the process at its other end dies.
"""

from __future__ import annotations

import signal
import sys
import time

import psutil

TOKEN = "KFP_TFJOB_TOKEN"
# A supervisor saves a checkpoint when it is stopped; no user is waiting for more.
_GRACE = 10.0


def carriers(token: str) -> list[psutil.Process]:
    """Return the processes with `token` in their environment."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN) == token:
                processes.append(process)
        except psutil.Error:
            continue  # it ended, or it belongs to another user and so not to this run
    return processes


def end(token: str, grace: float) -> int:
    """End every process with `token` by SIGTERM, then by SIGKILL; return the number of SIGKILLs.

    Args:
        token: The run's token.
        grace: The seconds between the two signals.
    """
    for process in carriers(token):
        _signal(process, psutil.Process.terminate)
    deadline = time.monotonic() + grace
    killed = 0
    while running := [process for process in carriers(token) if _is_alive(process)]:
        if time.monotonic() >= deadline:
            killed += sum(_signal(process, psutil.Process.kill) for process in running)
        time.sleep(0.1)  # reading the environment of all processes takes some milliseconds
    return killed


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False  # it has ended meanwhile


def _signal(process: psutil.Process, send) -> bool:
    """Return whether a process existed to get a signal; `send` is a method of psutil.Process."""
    try:
        send(process)
        return True
    except psutil.Error:
        return False  # it has ended meanwhile


def main() -> None:
    """Wait for the end of standard input, then end the run's processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(sys.argv[1], _GRACE)


if __name__ == "__main__":
    main()
