"""Finds the replicas that do not listen, and waits until the chief's name resolves."""

from __future__ import annotations

import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Mapping

from kfp_tfjob.supervisor.stop import Stop
from kfp_tfjob.supervisor.tf_config import split

_LOOK_SECONDS = 0.5
_CONNECT_SECONDS = 2
_MOST_NAMES = 8


def absent(peers: Mapping[str, str]) -> str:
    """Return the names of the peers that do not listen, with the reasons; empty for none.

    Args:
        peers: Addresses by name, for example {"worker 1": "host:port"}.
    """
    with ThreadPoolExecutor(16) as pool:
        found = [who for who in pool.map(_if_absent, peers.items()) if who]
    more = f" and {len(found) - _MOST_NAMES} more" if found[_MOST_NAMES:] else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def wait_for_chief(address: str, seconds: float, stop: Stop) -> str:
    """Wait until the chief's name resolves; return the problem if it does not.

    A name server that is asked too early may deny the name for minutes.

    Args:
        address: Host and port of the chief; empty not to wait.
        seconds: The longest wait; infinite not to wait.
        stop: Ends the wait.
    """
    start = time.monotonic()
    # Not in this thread: a slow name server must not delay a signal.
    pool, look, error = ThreadPoolExecutor(1), None, "the name server does not respond"
    while address and seconds < math.inf and not stop:
        look = look or pool.submit(socket.getaddrinfo, split(address)[0], None)
        if look in wait([look], _LOOK_SECONDS).done:
            found = look.exception()
            if not found:
                return ""
            look, error = None, getattr(found, "strerror", None) or str(found)
            time.sleep(_LOOK_SECONDS)
        if time.monotonic() - start >= seconds:
            return (
                f"another replica did not appear within {seconds:.0f} s: chief ({address}: {error})"
            )
    return ""


def _if_absent(peer: tuple[str, str]) -> str:
    """Return the name of a peer, its address and the error; empty when it listens."""
    name, address = peer
    host, port = split(address)
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        return ""
    except (OSError, ValueError) as error:
        return f"{name} ({address}: {getattr(error, 'strerror', None) or error})"
