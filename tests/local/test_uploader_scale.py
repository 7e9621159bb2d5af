"""Sizes that only a server which discards everything can take: run by `make test-uploader`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import servers
from benchmarks.peers import environment
from kfp_tfjob.storage.parts import part_length
from kfp_tfjob.storage.store import PART

TIB = 1 << 40


@pytest.mark.parametrize("size", [PART + 1, 9000 * PART, 9000 * PART + 1, TIB, 5 * TIB])
def test_no_object_has_more_parts_than_s3_takes(size: int) -> None:
    length = part_length(size)
    assert -(-size // length) <= 10_000
    assert PART <= length <= 5 << 30 and length % (1 << 20) == 0


# The peak of a process begins with that of the one that starts it, and this one is large.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def push(folder: Path, target: servers.Target) -> tuple[int, float, str]:
    """Run the command; return its exit code, its peak RSS in MiB and what it said."""
    line = [sys.executable, "-m", "benchmarks.push", str(folder), "s3://bench/x", target.endpoint]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *line],
        env=environment(target.keys) | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    words, _, kilobytes = done.stdout.rstrip().rpartition("\n")
    return done.returncode, int(kilobytes) / 1024, words


@pytest.mark.slow
@pytest.mark.fault("more than 10,000 parts of the usual size")
def test_a_file_of_more_than_10000_parts(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10_001 * PART)
    with servers.sink(None) as target:
        code, rss, words = push(tmp_path, target)
        assert code == 0, words
        assert target.requests() < 10_000
    assert rss < 200, words


@pytest.mark.slow
@pytest.mark.fault("100,000 files")
def test_100000_files(tmp_path: Path) -> None:
    for number in range(100_000):
        path = tmp_path / f"{number // 1000}" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    with servers.sink(None) as target:
        code, rss, words = push(tmp_path, target)
        assert code == 0, words
        assert target.requests() >= 100_000
    assert rss < 400, words
    assert "100,000 of 100,000 files" in words
