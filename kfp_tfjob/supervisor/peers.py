"""Finds the replicas that do not listen, and waits until the chief's name resolves.

Called by `supervise.py`.
"""

from __future__ import annotations

import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Mapping

from .stop import Stop
from .tf_config import split

_LOOK_SECONDS = 0.5  # between two lookups, which cost a name server milliseconds
_CONNECT_SECONDS = 2  # within a cluster, a connection takes milliseconds
_MOST_NAMES = 8  # in a message, of up to hundreds of replicas


def absent(peers: Mapping[str, str]) -> str:
    """Return the names of the peers that do not listen, with the reasons; empty if all listen.

    Args:
        peers: Addresses by name, for example {"worker 1": "host:port"}.
    """
    with ThreadPoolExecutor(16) as pool:
        descriptions = list(filter(None, pool.map(_describe_if_absent, peers.items())))
    omitted = f" and {len(descriptions) - _MOST_NAMES} more" if descriptions[_MOST_NAMES:] else ""
    return ", ".join(descriptions[:_MOST_NAMES]) + omitted


def wait_for_chief(address: str, seconds: float, stop: Stop) -> str:
    """Wait until the chief's name resolves; return the problem if it does not, else nothing.

    A name server that is asked too early may deny the name for minutes.

    Args:
        address: Host and port of the chief; empty not to wait.
        seconds: The longest wait; infinite not to wait.
        stop: Ends the wait.
    """
    start = time.monotonic()
    # Not in this thread: a slow name server must not delay a signal.
    pool, lookup, reason = ThreadPoolExecutor(1), None, "the name server does not respond"
    while address and seconds < math.inf and not stop:
        lookup = lookup or pool.submit(socket.getaddrinfo, split(address)[0], None)
        if lookup in wait([lookup], _LOOK_SECONDS).done:
            lookup_error = lookup.exception()
            if not lookup_error:
                return ""
            lookup, reason = None, getattr(lookup_error, "strerror", None) or str(lookup_error)
            time.sleep(_LOOK_SECONDS)
        if time.monotonic() - start >= seconds:
            chief = f"chief ({address}: {reason})"
            return f"another replica did not appear within {seconds:.0f} s: {chief}"
    return ""


def _describe_if_absent(peer: tuple[str, str]) -> str:
    """Return the name of a peer, its address and the error; empty when it listens."""
    name, address = peer
    host, port = split(address)
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        return ""
    except (OSError, ValueError) as error:
        return f"{name} ({address}: {getattr(error, 'strerror', None) or error})"
