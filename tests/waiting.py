"""Waiting for what other processes and threads do."""

import time
from collections.abc import Callable

SECONDS = 300.0  # only what hangs reaches it


def until(condition: Callable[[], object], what: str = "", seconds: float = SECONDS) -> None:
    """Wait until a condition is true; a look may be a request, so there are 20 in a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
