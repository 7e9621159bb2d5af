"""Where the server listens, and when it gives up clients that are gone or read nothing."""

from __future__ import annotations

import os
import socket

from kfp_tfjob.storage.errors import ConfigurationError, Problem

# Seconds: a connection without data before the first probe, between probes, and how many of them.
IDLE, _BETWEEN, _PROBES = 60, 15, 4


def default_host() -> str:
    """Return where to listen if the user does not say: in a pod everywhere, else only here."""
    return "0.0.0.0" if os.environ.get("KUBERNETES_SERVICE_HOST") else "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket whose connections end when their client is gone or reads nothing.

    Args:
        host: A name or an address of this machine.
        port: 0 for any.

    Raises:
        ConfigurationError: The port is taken, or the host is not one of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(*found[:3])
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(found[4])
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
    # Of Linux: an answer that its client does not read would hold its request in memory.
    options["TCP_USER_TIMEOUT"] = 1000 * (IDLE + _BETWEEN * _PROBES)
    for name, value in options.items():
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return bound
