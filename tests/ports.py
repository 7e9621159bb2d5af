"""Ports of this machine for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket

# Below the ports that the kernel gives to connections, and tests make thousands: one of those
# could be taken between the moment it was found and the moment the server listens.
_PORTS = range(12_000, 20_000)
_CHANCE = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """Return an unused port."""
    return free_ports(1, host)[0]


def free_ports(number: int, host: str = "127.0.0.1") -> list[int]:
    """Return different unused ports."""
    found: list[int] = []
    while len(found) < number:
        port = _CHANCE.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
