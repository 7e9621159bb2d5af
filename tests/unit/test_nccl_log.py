"""Which transports NCCL chose, from logs in the formats of its source."""

import pytest

from kfp_tfjob.jobs.nccl_log import Transports
from tests.environments import ROOT

LOGS = ROOT / "tests" / "data" / "nccl"


def transports(name: str) -> Transports:
    return Transports.read((LOGS / f"{name}.log").read_text().splitlines())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one-node", Transports(ranks=2, nodes=1, local=("P2P/CUMEM",))),
        ("shared-memory", Transports(ranks=2, nodes=1, local=("SHM",))),
        ("sockets", Transports(ranks=2, nodes=2, networks=("NET/Socket",))),
        (
            "infiniband",
            Transports(ranks=4, nodes=2, networks=("NET/IB/GDRDMA",), local=("P2P/CUMEM",)),
        ),
        ("efa", Transports(ranks=2, nodes=2, networks=("NET/AWS Libfabric",))),
    ],
)
def test_the_transports_of_a_log(name: str, expected: Transports) -> None:
    read = transports(name)
    assert read.version == ("2.19.3+cuda12.3" if name == "efa" else "2.32.3+cuda12.9")
    assert (read.ranks, read.nodes) == (expected.ranks, expected.nodes)
    assert (read.networks, read.local) == (expected.networks, expected.local)
    assert bool(read) and (read.problem is not None) == (name == "sockets")


def test_sockets_between_nodes_are_named_with_their_interfaces() -> None:
    problem = transports("sockets").problem
    assert problem is not None
    assert problem.received == "NET/Socket, eth0:10.244.1.17, net1:192.168.7.4"
    assert problem.path == "pod.all.resources" and "rdma/ib" in problem.fix


def test_the_logs_of_all_processes_are_one_communicator() -> None:
    names = ("one-node", "infiniband")
    lines = [line for name in names for line in (LOGS / f"{name}.log").read_text().splitlines()]
    read = Transports.read(lines)
    assert (read.ranks, read.nodes, read.local) == (4, 2, ("P2P/CUMEM",))
    assert str(read) == (
        "NCCL 2.32.3+cuda12.9; between nodes NET/IB/GDRDMA; within a node P2P/CUMEM"
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "epoch 1 of 3: loss 0.1",
        "the model reads NET/Socket/0",
        "h:1:2 [0] NCCL INFO Using network Socket",
        "h:1:2 [0] NCCL INFO Channel 00/02 :    0   1",
        "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] to NET/Socket/0",
    ],
)
def test_other_lines_show_no_connection(line: str) -> None:
    assert not Transports.read([line])
    assert Transports.read([line]).problem is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P2P/direct pointer/read", "P2P/direct pointer"),
        ("P2P/IPC", "P2P/IPC"),
        ("P2P/indirect/3[3]", "P2P/indirect"),
        ("NET/Socket/1(4)", "NET/Socket"),
        ("NET/IBext_v8/0/GDRDMA(PCI)", "NET/IBext_v8/GDRDMA"),
        ("COLLNET/SHARP/0/GDRDMA", "COLLNET/SHARP"),
    ],
)
def test_a_connection_has_a_kind(text: str, expected: str) -> None:
    line = f"h:1:2 [0] NCCL INFO Channel 03/1 : 11[3] -> 0[0] via {text}"
    read = Transports.read([line])
    assert [*read.networks, *read.local] == [expected]
