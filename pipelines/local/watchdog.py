"""Ends every process of a run when the command line ends, even by SIGKILL.

    python -m kfp_tfjob.pipelines.local.watchdog TOKEN

The kernel closes the pipe on standard input when the process at its other end dies, however it
dies. This program waits for that.
"""

from __future__ import annotations

import signal
import sys

from kfp_tfjob.pipelines.local import processes

# A supervisor saves a checkpoint when it is stopped; no user is waiting for more.
_GRACE = 10.0


def main() -> None:
    """Wait for the end of standard input, then end the run's processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    processes.end(sys.argv[1], _GRACE)


if __name__ == "__main__":
    main()
