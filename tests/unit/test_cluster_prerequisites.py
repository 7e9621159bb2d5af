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
    text = "\n".join(map(str, prerequisites.missing()))
    assert f"Received: Darwin on {platform.machine()}" in text
    assert "user id 1000. Expected: root" in text
    assert "Received: no command `go`. Expected: Go 1.26 or newer" in text


def test_another_user_than_root_is_told_so(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "user id 1000. Expected: root" in "\n".join(map(str, prerequisites.missing()))


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26)), ("module x\n\ngo 1.25.0\n", (1, 25))],
)
def test_versions_of_go(text, version):
    assert prerequisites.version(text) == version
