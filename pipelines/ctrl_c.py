"""Lets Ctrl-C end a wait with an exception, where a command has something to do or to show then.

Elsewhere, `__main__.py` ends the process at once. Called by `watch.py`, `logs.py` and
`tensorboard.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the block.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread has handlers
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
