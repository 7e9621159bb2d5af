"""The server's listening socket, which drops clients that are gone or stop reading.

Without keepalive and a user timeout, each such client would hold a connection and a response in
memory. Called by server.py.
"""

from __future__ import annotations

import os
import socket

from kfp_tfjob.common.errors import ConfigurationError, Problem

# Seconds without data before the first keepalive probe, seconds between probes, and their number: a
# client is gone after 2 minutes.
IDLE, _BETWEEN, _PROBES = 60, 15, 4


def default_host() -> str:
    """Return the default address: all interfaces in a pod, otherwise only this machine."""
    service = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not service:
        return "127.0.0.1"
    # In a cluster with IPv6 only, a pod cannot be reached by IPv4.
    return "::" if ":" in service else "0.0.0.0"


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket whose connections end when their client is gone or stops reading.

    Args:
        host: A name or an address of this machine.
        port: The port; 0 for any free one.

    Raises:
        ConfigurationError: The port is taken, or the host is not one of this machine.
    """
    try:
        address_info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(*address_info[:3])
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address_info[4])
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "the server cannot listen",
                received=f"{host}, port {port}: {error.strerror}",
                expected="an address of this machine, and a free port",
                fix="choose others with --host and --port",
                path="--port",
            )
        ) from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": IDLE, "TCP_KEEPINTVL": _BETWEEN, "TCP_KEEPCNT": _PROBES}
    # Only on Linux: a response that its client does not read would hold its request in memory.
    options["TCP_USER_TIMEOUT"] = 1000 * (IDLE + _BETWEEN * _PROBES)
    for name, value in options.items():
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return bound
