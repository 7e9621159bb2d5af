"""How many cores a container may use: its limit, and never the cores of its node."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kfp_tfjob.supervisor.cores import available_cores

UNLIMITED = {"cpu.max": "max 100000"}


@pytest.fixture(autouse=True)
def _node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 64 cores, seen from outside Kubernetes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def cores(tmp_path: Path, own: str, files: Mapping[str, str]) -> int:
    """Count them where the cgroups hold these files."""
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    return available_cores(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("limit", "count"),
    [("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 64)],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, limit: str, count: int) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": limit}) == count


def test_a_limit_above_counts_too(tmp_path: Path) -> None:
    """Of a pod, or of a container that sees the cgroups of its node."""
    own = "0::/kubepods/pod1/main\n"
    files = {"kubepods/pod1/main/cpu.max": "max 100000", "kubepods/pod1/cpu.max": "3 1"}
    assert cores(tmp_path, own, files) == 3


def test_version_1_as_a_container_sees_it(tmp_path: Path) -> None:
    """The path is the node's, and only the container's own cgroup is mounted."""
    own = "4:cpu,cpuacct:/kubepods/x\n"
    files = {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}
    assert cores(tmp_path, own, files) == 3


def test_no_limit_outside_kubernetes_is_every_core(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", UNLIMITED) == 64
    assert cores(tmp_path, "", {}) == 64


def test_who_shares_the_cores_of_a_node_says_how_many(tmp_path, monkeypatch) -> None:
    cores(tmp_path, "0::/\n", UNLIMITED)
    places = (tmp_path / "cgroup", tmp_path / "own")
    assert available_cores(*places, shared=4) == 64  # outside Kubernetes
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert available_cores(*places, shared=4) == 4


def test_no_limit_in_kubernetes_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert cores(tmp_path, "0::/\n", UNLIMITED) == 1
    assert cores(tmp_path, "0::/\n", {"cpu.max": "200000 100000"}) == 2
