"""Opens the embedded store of a folder of local runs.

Commands such as `models list` may run while no run does, so they start the store's server, or use
the one that another program has started. Called by the commands that read a store or a local run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

from .home import BUCKET, Home
from .s3_server import Server, try_exclusive_lock


@contextmanager
def embedded_store(home: Home, patience: Patience) -> Iterator[Store]:
    """Open the embedded store; its server is started unless another program has started it.

    Raises:
        ConfigurationError: There are no local runs, the server is not installed, or the folder
            cannot be used.
        StepError: The server does not start.
    """
    if not home.s3.is_dir():
        raise ConfigurationError(
            Problem(
                "no store was given, and there are no local runs here",
                received=f"no folder {home.s3}",
                expected="--output s3://BUCKET/PREFIX, or the folder of local runs",
                fix="add --output (and --endpoint, if the store is not AWS), or --home",
            )
        )
    with home.translate_errors():
        try:
            server = Server.start(home.s3)
        except StepError:
            if home.is_full():  # the server cannot even write this to its log
                raise home.full("free some space") from None
            raise
    with server:
        yield server.store(patience)


@contextmanager
def store_of(
    address: S3Address, endpoint: str, home: Home, patience: Patience, region: str = ""
) -> Iterator[Store]:
    """Open the store of an address; the embedded store's bucket is never looked up on AWS."""
    store = Store(endpoint, region, patience=patience)
    host = urlsplit(store.session.client.meta.endpoint_url).hostname or ""
    if endpoint or address.bucket != BUCKET or "amazonaws.com" not in host:
        yield store
        return
    with embedded_store(home, patience) as store:
        yield store


def is_held(lock: Path) -> bool:
    """Return whether a process holds a lock."""
    if not lock.exists():
        return False
    with open(lock) as file:
        return not try_exclusive_lock(file)
