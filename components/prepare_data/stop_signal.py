"""Lets SIGTERM end the step as an error does: its processes end, and no folder is left.

Kubernetes sends it when a run is terminated or a node is drained. Without a handler, the kernel
would end the process at once, and the rows of a local run would stay on the user's disk. Called by
prepare_data's engine.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit with code 143 within the body at the first SIGTERM; a second one kills.

    Only the main thread can handle signals, and a handler that is set already stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
