"""Starts the command line; from its first moment, signal N exits with code 128 + N.

Loading the commands takes seconds. A command replaces these handlers with its own, which also end
the processes that it started.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # of nohup
            signal.signal(number, _end)
    try:
        from kfp_tfjob.pipelines.cli import main as run

        run()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "kfp_tfjob":
            raise
        sys.exit(
            f"kfp-tfjob: the package {package} is not installed. Fix: install kfp-tfjob with its"
            " extra `local`, for instance: pip install 'kfp-tfjob[local]'"
        )


def _end(number: int, _frame: object) -> None:
    os.write(2, f"\nkfp-tfjob: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)  # running code could print or swallow an exception


if __name__ == "__main__":
    main()
