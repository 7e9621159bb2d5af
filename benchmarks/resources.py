"""Runs a command and measures what it and all of its descendants take.

    python -m benchmarks.resources [--cores N] -- COMMAND...

The last line is a JSON object: wall and CPU seconds, and the peak of the resident memory of each
process in MiB, largest first. Processes that outlive the command are waited for and counted too.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOOK = 0.02  # seconds between two looks at the memory; the kernel keeps the peak in between
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
_LEAST = 20  # MiB; a smaller process is a launcher


@dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
        wall: Seconds.
        cpu: Seconds of all its processes.
        peaks: The peak of the resident memory of each process in MiB, largest first.
        said: The JSON object on the last line of its output; empty if there is none.
    """

    wall: float
    cpu: float
    peaks: tuple[float, ...]
    said: dict[str, Any]


def measured(
    line: Sequence[str], environment: Mapping[str, str] | None = None, cores: int = 0
) -> Usage:
    """Run a command in a new process and measure it.

    Args:
        line: The command.
        environment: All its variables; None for those of this process.
        cores: How many cores it may use; 0 for all.

    Raises:
        SystemExit: It failed.
    """
    whole = [sys.executable, "-m", "benchmarks.resources", "--cores", str(cores), "--", *line]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    *said, usage = done.stdout.splitlines()
    last = said[-1] if said and said[-1].startswith("{") else "{}"
    return Usage(said=json.loads(last), **json.loads(usage))


def main() -> int:
    """Run the command of the command line."""
    cores, line = int(sys.argv[2]), sys.argv[4:]
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    peaks: dict[int, int] = {}
    start = time.perf_counter()
    command = subprocess.Popen(line)
    wall = code = None
    while True:
        for pid in _below(os.getpid()):
            peaks[pid] = max(peaks.get(pid, 0), _peak(pid))
        if code is None and command.poll() is not None:
            wall, code = time.perf_counter() - start, command.returncode
        if code is not None:
            try:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                break
        time.sleep(_LOOK)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = sorted((size / 1024 for size in peaks.values() if size >> 10 >= _LEAST), reverse=True)
    usage = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "peaks": shown}
    print(json.dumps(usage), flush=True)
    return code


def _below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    except OSError:
        pass  # it has ended
    return found


def _peak(pid: int) -> int:
    """Return the peak of the resident memory of a process in KiB."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
