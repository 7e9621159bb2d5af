"""What `make test-cluster` says on a machine that cannot run it."""

from __future__ import annotations

import platform

import pytest

from tests.cluster import prerequisites


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without any program and with nothing built."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KFP_TFJOB_CACHE", str(tmp_path / "cache"))


def test_everything_that_is_missing_is_said_at_once(bare, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    found = {str(problem.received): problem.expected for problem in prerequisites.missing()}
    assert f"Darwin on {platform.machine()}" in found
    assert found["user id 1000"] == "root" and "Go 1.26" in found["no command `go`"]


def test_another_user_than_root_is_told_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "user id 1000" in [problem.received for problem in prerequisites.missing()]


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("module x\n\ngo 1.25.0\n", (1, 25))],
)
def test_versions_of_go(text, version):
    assert prerequisites.version(text) == version
