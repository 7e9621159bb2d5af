"""Opens the embedded store of a folder of local runs."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store


@contextmanager
def embedded_store(home: Home, patience: Patience) -> Iterator[Store]:
    """Open the embedded store; its server is started, unless a program uses it now.

    Args:
        home: The folder of local runs.
        patience: How long a call is retried.

    Raises:
        ConfigurationError: The server is not installed, or the folder cannot be used.
        StepError: The server does not start.
    """
    from kfp_tfjob.pipelines.local.s3_server import Server

    with home.errors_told():
        server = Server.start(home.s3)
    with server:
        yield server.store(patience)


def is_held(lock: Path) -> bool:
    """Tell whether a process holds a lock."""
    if not lock.exists():
        return False
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
