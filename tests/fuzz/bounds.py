"""What one hostile input may cost, and how that is measured."""

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 10  # of the processor, whatever else the machine does
_SLOWER = 4  # than the machine on which bounds were found, a machine may be
MEMORY = 512 << 20  # bytes above what the process had before
_ADDRESSES = 4 << 30  # bytes; a request above is refused before it hurts this machine
_STATUS = Path("/proc/self/status")


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Fail when what happens inside takes more than it may.

    Args:
        memory: Bytes above what the process has now; measured on Linux only.
    """
    measured = sys.platform == "linux"
    before = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if measured:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        before = _kilobytes("VmRSS") << 10
        resource.setrlimit(resource.RLIMIT_AS, ((_kilobytes("VmSize") << 10) + _ADDRESSES, hard))

    def too_slow(*_: object) -> None:
        raise AssertionError(f"it took more than {_SLOWER} times {seconds} s")

    old = signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, _SLOWER * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if measured:
        peak = (_kilobytes("VmHWM") << 10) - before
        assert peak <= memory, f"it took {peak >> 20} MiB"


def _kilobytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"{_STATUS} has no {name}")
