"""A recorded profile in TensorBoard, with the packages that the page names."""

import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import tensorflow as tf

from kfp_tfjob.options.train import Profile
from kfp_tfjob.trainer.profiler import Profiler
from tests.environments import ROOT, with_packages
from tests.waiting import until


@pytest.fixture
def board(tmp_path: Path) -> Iterator[str]:
    """Return the address of a TensorBoard on a profile of three steps."""
    profiler = Profiler(Profile(start=2, steps=3), 5, tmp_path / "logs/train", True)
    step = tf.function(lambda: tf.reduce_sum(tf.random.normal((64, 64))))
    for done in range(5):
        with profiler.step(done):
            step()
    (line,) = re.findall(
        r"pip install (tensorboard==.*)", (ROOT / "docs/runs.md").read_text(encoding="utf-8")
    )
    command = ["-m", "tensorboard.main", "--logdir", str(tmp_path / "logs"), "--port", "0"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([with_packages(*line.split()), *command], stderr=log)
    try:
        until(lambda: _addresses(tmp_path), "an address", 120)
        yield _addresses(tmp_path)[0].rstrip("/")
    finally:
        process.kill()
        process.wait()


def _addresses(folder: Path) -> list[str]:
    return re.findall(r"http://localhost\S+", (folder / "log").read_text())


def _read(address: str) -> bytes:
    with urlopen(address, timeout=120) as answer:
        content = answer.read()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


@pytest.mark.slow
def test_the_profile_plugin_shows_the_steps(board: str) -> None:
    until(lambda: json.loads(_read(f"{board}/data/plugins_listing"))["profile"]["enabled"])
    data = f"{board}/data/plugin/profile"
    (run,) = json.loads(_read(f"{data}/runs"))
    (host,) = json.loads(_read(f"{data}/hosts?run={quote(run)}&tag=trace_viewer"))
    which = f"run={quote(run)}&host={quote(host['hostname'])}"
    trace = json.loads(_read(f"{data}/data?{which}&tag=trace_viewer"))
    assert sum(event.get("name", "").startswith("train") for event in trace["traceEvents"]) >= 3
    assert json.loads(_read(f"{data}/data?{which}&tag=overview_page"))
