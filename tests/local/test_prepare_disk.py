"""A disk that is too small for the rows."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.step import Step
from tests.problems import problem_of


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 1 MiB for the step's files; only root can mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a disk")
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_with_the_room_that_is_needed(
    step: Step, tmp_path: Path, small_disk: Path
) -> None:
    rows = "".join(f"{i % 7},{i % 2}\n" for i in range(80_000))
    (tmp_path / "f.csv").write_text("a,y\n" + rows)
    problem = problem_of(
        engine.run, step, str(tmp_path / "f.csv"), "y", {}, workers=1, kind=StepError
    )
    assert "disk is full" in problem.what and "No space left" in problem.received
    assert "up to 960.0 kB for the rows of 320.0 kB of data" in problem.expected
    assert "TMPDIR" in problem.fix and "pod.prepare.node_selector" in problem.fix
    assert not list(small_disk.iterdir())
