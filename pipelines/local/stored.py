"""Opens the embedded store of a folder of local runs."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store


@contextmanager
def embedded_store(home: Home, patience: Patience) -> Iterator[Store]:
    """Open the embedded store; its server is started, unless a run uses it now.

    Args:
        home: The folder of local runs.
        patience: How long a call is retried.

    Raises:
        ConfigurationError: The server is not installed.
    """
    from kfp_tfjob.pipelines.local.s3_server import Server

    if is_held(home.s3 / "lock"):
        yield Store(secret=SecretVolume(home.s3 / "secret"), patience=patience)
        return
    if find_spec("swift") is None:
        raise ConfigurationError(
            Problem(
                "the models of local runs are in an embedded store, which is not installed here",
                received="no package swift",
                expected="the extra `local`, or beside the extra `serve`: pip install swift",
                fix="install it, or name the store with --output s3://BUCKET/PREFIX",
            )
        )
    with Server.start(home.s3) as server:
        yield Store(secret=SecretVolume(server.secret), patience=patience)


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
