"""What one hostile input may cost, and how that is measured."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 10  # of the clock, on a machine that does other things too
MEMORY = 512 << 20  # bytes above what the process had before
_ADDRESSES = 4 << 30  # bytes; a request above is refused before it hurts this machine
_STATUS = Path("/proc/self/status")


@contextmanager
def bounded() -> Iterator[None]:
    """Fail when what happens inside takes more than SECONDS or MEMORY.

    Memory is measured on Linux only.
    """
    measured = sys.platform == "linux"
    before = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if measured:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        before = _kilobytes("VmRSS") << 10
        resource.setrlimit(resource.RLIMIT_AS, ((_kilobytes("VmSize") << 10) + _ADDRESSES, hard))
    old = signal.signal(signal.SIGALRM, _too_slow)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if measured:
        peak = (_kilobytes("VmHWM") << 10) - before
        assert peak <= MEMORY, f"it took {peak >> 20} MiB"


def _too_slow(*_: object) -> None:
    raise AssertionError(f"it took more than {SECONDS} s")


def _kilobytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{_STATUS} has no {name}")
