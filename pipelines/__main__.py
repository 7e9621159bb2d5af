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
    _use_utf_8()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # of nohup
            signal.signal(number, _end)
    try:
        from .cli import main as run

        run()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "kfp_tfjob":
            raise
        sys.exit(
            f"kfp-tfjob: the package {package} is not installed. Fix: install kfp-tfjob with its"
            " extra `local`, for example: pip install 'kfp-tfjob[local]'"
        )


def _use_utf_8() -> None:
    """Start again in Python's UTF-8 mode if the shell has another encoding, as LANG=en_US has.

    Every file of the project is UTF-8, and so are most names of files, even if LANG differs.
    """
    if sys.getfilesystemencoding() != "utf-8" and "PYTHONUTF8" not in os.environ:
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _end(number: int, _frame: object) -> None:
    os.write(2, f"\nkfp-tfjob: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)  # running code could print or swallow an exception


if __name__ == "__main__":
    main()
