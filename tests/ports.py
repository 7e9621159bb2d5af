"""Ports of this machine for servers that cannot choose one themselves."""

import random
import socket

# Below the ports that the kernel gives to connections, and tests make thousands: one of those
# could be taken between the moment it was found and the moment the server listens.
_PORTS = range(12_000, 20_000)
_CHANCE = random.SystemRandom()
# A server listens seconds after its port was found. Until this process ends, no other process of
# the tests is given the same one: each holds a name in the kernel for every port it gave out.
_HELD: list[socket.socket] = []


def free_port(host: str = "127.0.0.1") -> int:
    return free_ports(1, host)[0]


def free_ports(number: int, host: str = "127.0.0.1") -> list[int]:
    found: list[int] = []
    while len(found) < number:
        port = _CHANCE.choice(_PORTS)
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0kfp-tfjob-test-port-{port}")
            with socket.socket() as probe:
                probe.bind((host, port))
        except OSError:
            name.close()
            continue
        _HELD.append(name)
        found.append(port)
    return found
