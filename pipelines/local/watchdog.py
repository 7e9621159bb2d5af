"""Ends every process of a run once the command line is gone, even if that was killed.

    python -m kfp_tfjob.pipelines.local.watchdog TOKEN

The kernel closes the pipe on standard input when the process at its other end dies, whatever the
way it died. That is the only sign this program waits for.
"""

from __future__ import annotations

import signal
import sys

from kfp_tfjob.pipelines.local import processes

# A supervisor that is told to stop saves a checkpoint; nobody is left to wait longer for it.
_GRACE = 10.0


def main() -> None:
    """Wait for the end of standard input, then end the run's processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    processes.end(sys.argv[1], _GRACE)


if __name__ == "__main__":
    main()
