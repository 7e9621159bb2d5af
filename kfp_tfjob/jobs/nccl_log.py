"""Reads NCCL's log: over which transports the GPUs of a job exchange gradients.

NCCL takes the fastest transport that it can use, and falls back to a slow one without a warning. If
nodes have InfiniBand, but the image lacks its libraries or the pods lack its device, the job trains
over TCP sockets at a fraction of the speed. Only the log at the level INFO shows this. Called by
the launcher, which follows the logs, and by the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kfp_tfjob.common.errors import Problem

SOCKETS = "NET/Socket"
# The formats of NCCL 2.19 to 2.30: src/init.cc, src/transport/*.cc.
_VERSION = re.compile(r"NCCL version (\d\S*)")
_SIZE = re.compile(r"NCCL INFO comm \S+ rank \d+ nRanks (\d+) nNodes (\d+) ")
_CHANNEL = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\](?: \[(?:send|receive)\])? via (.+)"
)
_NETWORK = re.compile(r"NET/([^/]+)/\d+(?:\(\d+\))?(/GDRDMA)?")
_INTERFACES = re.compile(r"NCCL INFO NET/Socket : Using (.+)")
_INTERFACE = re.compile(r"\[\d+\]([^:\s]+):(\S+?)<\d+>")


@dataclass(frozen=True)
class Transports:
    """The transports of the communicators in a log.

    Attributes:
        version: NCCL's version, such as `2.32.3+cuda12.9`; empty if the log does not have it.
        ranks: Number of GPUs of the largest communicator; 0 if unknown.
        nodes: Number of its nodes. NCCL counts two pods as two nodes, even on one machine.
        networks: Between nodes, such as `NET/IB/GDRDMA`, in the order of the log.
        local: Within a node, such as `P2P/CUMEM` or `SHM`, in the order of the log.
        interfaces: The interfaces that sockets use, such as `eth0:10.0.0.2`.
    """

    version: str = ""
    ranks: int = 0
    nodes: int = 0
    networks: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    @classmethod
    def read(cls, lines: Iterable[str]) -> Transports:
        """Read the lines of one or several processes; other programs' lines are ignored."""
        version, sizes = "", [(0, 0)]
        networks: dict[str, None] = {}
        local: dict[str, None] = {}
        interfaces: dict[str, None] = {}
        for line in lines:
            if "NCCL" not in line:
                continue
            if match := _CHANNEL.search(line):
                transport = _transport(match[1].strip())
                (networks if transport.startswith("NET/") else local)[transport] = None
            elif match := _SIZE.search(line):
                sizes.append((int(match[1]), int(match[2])))
            elif match := _INTERFACES.search(line):
                names = (f"{name}:{address}" for name, address in _INTERFACE.findall(match[1]))
                interfaces |= dict.fromkeys(names)
            elif match := _VERSION.search(line):
                version = match[1]
        ranks, nodes = max(sizes)
        return cls(version, ranks, nodes, tuple(networks), tuple(local), tuple(interfaces))

    def __bool__(self) -> bool:
        """Whether the log shows any connection."""
        return bool(self.networks or self.local)

    def __str__(self) -> str:
        """Return a line for the log."""
        parts = [f"NCCL {self.version}".strip()]
        if self.networks:
            parts.append(f"between nodes {', '.join(self.networks)}")
        if self.local:
            parts.append(f"within a node {', '.join(self.local)}")
        return "; ".join(parts)

    @property
    def problem(self) -> Problem | None:
        """The warning that nodes exchange gradients over TCP sockets; None if they do not."""
        if self.nodes == 1 or not any(name.startswith(SOCKETS) for name in self.networks):
            return None
        return Problem(
            "NCCL sends gradients between nodes over TCP sockets, which may slow down training",
            received=", ".join([SOCKETS, *self.interfaces]),
            expected="NET/IB for InfiniBand or RoCE, or a plugin, such as NET/Libfabric for EFA",
            fix="if the nodes have such a network, request its device with pod.all.resources, for"
            " example rdma/ib or vpc.amazonaws.com/efa, and use a train_image with its libraries;"
            " without one, prefer one replica with more GPUs (train_gpus) to several replicas",
            path="pod.all.resources",
        )


def _transport(text: str) -> str:
    """Return the kind of a connection: `NET/IB/0/GDRDMA/Shared` is `NET/IB/GDRDMA`."""
    if match := _NETWORK.match(text):
        return f"NET/{match[1]}{match[2] or ''}"
    kind, _, way = text.partition("/")
    # The way to shared memory has two parts of which neither tells a user anything.
    return kind if kind == "SHM" or not way else f"{kind}/{way.partition('/')[0]}"
